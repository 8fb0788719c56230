"""
Online conformal prediction with Dirichlet-process beliefs.

One belief about the next nonconformity score answers every confidence level at once, never crosses,
and comes with regret and coverage guarantees. Start with :func:`replay` and :class:`Exact`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from dpconformal import priors, rates, schedules, streams
from dpconformal.beliefs import ERM, Belief, DiscountedERM, Exact, NExCP, Quantized, SlidingERM, SplitConformal
from dpconformal.engine.machine import TooLarge, compilation_cache
from dpconformal.engine.states import Delayed
from dpconformal.learner import Learner
from dpconformal.replay import Replay, Summary, replay

if TYPE_CHECKING:
    from dpconformal import (
        diagnostics,
        dirichlet,
        experiments,
        forecasts,
        martingales,
        metrics,
        models,
        panel,
        plots,
        scores,
        theory,
    )
    from dpconformal.baselines import ACI, MVP, OGD, PID, SAOCP, SFOGD, AgACI, DtACI, MultiMVP, MultiOGD
    from dpconformal.checkpoints import Checkpoint, load, save
    from dpconformal.compositions import Aggregate, Corrected, Credible, Hierarchical, Rearranged, Recalibrated, auto
    from dpconformal.conformal import Conformal, Online, conformalize
    from dpconformal.panel.replaying import fit_belief, replay_panel
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
    "Rearranged",
    "Recalibrated",
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
    "forecasts",
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

# What a replay with a belief does not need is imported when it is first asked for.
_MODULES = (
    "diagnostics",
    "dirichlet",
    "experiments",
    "forecasts",
    "martingales",
    "metrics",
    "models",
    "panel",
    "plots",
    "scores",
    "theory",
)
_NAMES = {
    "baselines": ("ACI", "MVP", "OGD", "PID", "SAOCP", "SFOGD", "AgACI", "DtACI", "MultiMVP", "MultiOGD"),
    "checkpoints": ("Checkpoint", "load", "save"),
    "compositions": ("Aggregate", "Corrected", "Credible", "Hierarchical", "Rearranged", "Recalibrated", "auto"),
    "conformal": ("Conformal", "Online", "conformalize"),
    "panel.replaying": ("fit_belief", "replay_panel"),
    "report.page": ("report",),
    "theory.catalogue": ("learners",),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

# `report` is a folder and a function. Import sets the folder's name here, once: that is over before the name is free
# for the function, so no later import can hide it.
importlib.import_module("dpconformal.report")
del globals()["report"]


if not TYPE_CHECKING:  # it would let type checkers accept any name

    def __getattr__(name: str) -> Any:
        """Import a module, or a name from its module."""
        if name in _MODULES:
            return importlib.import_module(f"dpconformal.{name}")
        if name in _MODULE_OF:
            value = getattr(importlib.import_module(f"dpconformal.{_MODULE_OF[name]}"), name)
            globals()[name] = value  # found without this function from now on
            return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List public names, imported or not."""
    return sorted({*globals(), *__all__})
