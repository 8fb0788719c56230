"""
Online conformal prediction with Dirichlet-process beliefs.

One belief about the next nonconformity score answers every confidence level at once, never crosses,
and comes with regret and coverage guarantees. Start with :func:`replay` and :class:`Exact`.
"""

from dpconformal import (
    diagnostics,
    dirichlet,
    experiments,
    martingales,
    metrics,
    models,
    panel,
    plots,
    priors,
    rates,
    schedules,
    scores,
    streams,
    theory,
)
from dpconformal.baselines import ACI, MVP, OGD, PID, SAOCP, SFOGD, AgACI, DtACI, MultiMVP, MultiOGD
from dpconformal.beliefs import ERM, Belief, DiscountedERM, Exact, NExCP, Quantized, SlidingERM, SplitConformal
from dpconformal.checkpoints import Checkpoint, load, save
from dpconformal.compositions import Aggregate, Corrected, Credible, Hierarchical, auto
from dpconformal.conformal import Conformal, Online, conformalize
from dpconformal.engine.compilation import compilation_cache
from dpconformal.engine.feedback import Delayed
from dpconformal.engine.memory import TooLarge
from dpconformal.learner import Learner
from dpconformal.panel.fitting import fit_belief
from dpconformal.panel.replaying import replay_panel
from dpconformal.replay import Replay, Summary, replay
from dpconformal.report import report
from dpconformal.theory.catalogue import learners

__all__ = [
    "ACI",
    "ERM",
    "MVP",
    "OGD",
    "PID",
    "SAOCP",
    "SFOGD",
    "AgACI",
    "Aggregate",
    "Belief",
    "Checkpoint",
    "Conformal",
    "Corrected",
    "Credible",
    "Delayed",
    "DiscountedERM",
    "DtACI",
    "Exact",
    "Hierarchical",
    "Learner",
    "MultiMVP",
    "MultiOGD",
    "NExCP",
    "Online",
    "Quantized",
    "Replay",
    "SlidingERM",
    "SplitConformal",
    "Summary",
    "TooLarge",
    "auto",
    "compilation_cache",
    "conformalize",
    "diagnostics",
    "dirichlet",
    "experiments",
    "fit_belief",
    "learners",
    "load",
    "martingales",
    "metrics",
    "models",
    "panel",
    "plots",
    "priors",
    "rates",
    "replay",
    "replay_panel",
    "report",
    "save",
    "schedules",
    "scores",
    "streams",
    "theory",
]
__version__ = "0.1.0"
