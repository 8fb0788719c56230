"""
Online conformal prediction with Dirichlet-process beliefs.

One belief about the next nonconformity score answers every confidence level at once, never crosses,
and comes with regret and coverage guarantees. Start with :func:`replay` and :class:`Exact`.
"""

from dpconformal import metrics, plots, priors, schedules
from dpconformal.beliefs import ERM, Belief, Exact, Quantized, SplitConformal
from dpconformal.compilation import compilation_cache
from dpconformal.learner import Learner
from dpconformal.replay import Replay, Summary, replay

__all__ = [
    "ERM",
    "Belief",
    "Exact",
    "Learner",
    "Quantized",
    "Replay",
    "SplitConformal",
    "Summary",
    "compilation_cache",
    "metrics",
    "plots",
    "priors",
    "replay",
    "schedules",
]
__version__ = "0.1.0"
