"""
The methods that the benchmark compares, each with the settings that its documentation gives or recommends.

Nothing is tuned on the streams: a window of 100 rounds and a discount of 0.99, a memory as long, serve all that forget.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import dpconformal as dpc

MANY = np.linspace(0, 1, 50)  # the grid of the paper's MultiOGD, whatever levels are asked for


class Method(NamedTuple):
    """A name, whether it is a belief with a prior, and how to make it for a support and the levels asked."""

    name: str
    ours: bool
    make: Callable[[float, float, Any], Any]


def uniform(low, high):
    return dpc.priors.Uniform(low, high)


def light_prior(low, high):
    return dpc.Exact(uniform(low, high), dpc.schedules.Constant(0.01), discount=0.99)


def five_memories(low, high):
    """Mix the default beliefs of four discounts and of none: memories of 10, 33, 100 and 333 rounds, and all."""
    discounts = (None, 0.9, 0.97, 0.99, 0.997)
    return dpc.Aggregate([dpc.Quantized(256, uniform(low, high), discount=discount) for discount in discounts])


def constant_steps(low, high, levels):
    """PID whose steps, integrator and start are shares of the support, in the place of those of recent scores."""
    start, width = low + (high - low) * np.asarray(levels), high - low
    return dpc.PID(levels, rate=0.1 * width, integral=width, window=None, initial=start, low=low, high=high)


def _grid(name, learner, **settings):
    return Method(name, False, lambda low, high, levels: learner(levels, low=low, high=high, **settings))


METHODS = (
    Method("Exact", True, lambda low, high, levels: dpc.Exact(uniform(low, high))),
    Method("Quantized", True, lambda low, high, levels: dpc.Quantized(256, uniform(low, high))),
    Method("Exact 0.99", True, lambda low, high, levels: dpc.Exact(uniform(low, high), discount=0.99)),
    Method("Quantized 0.99", True, lambda low, high, levels: dpc.Quantized(256, uniform(low, high), discount=0.99)),
    # The prior with the weight of one score, as in docs/baselines.md; by default a discount gives it √(1 - β) = 0.1.
    Method("Exact 0.99, light prior", True, lambda low, high, levels: light_prior(low, high)),
    Method("Aggregate", True, lambda low, high, levels: five_memories(low, high)),
    Method("auto", True, lambda low, high, levels: dpc.auto(low, high)),
    # Further learners of ours go here, a line each.
    Method("ERM", False, lambda low, high, levels: dpc.ERM(uniform(low, high))),
    Method("SplitConformal", False, lambda low, high, levels: dpc.SplitConformal(low, high)),
    Method("SlidingERM", False, lambda low, high, levels: dpc.SlidingERM(100, uniform(low, high))),
    Method("DiscountedERM", False, lambda low, high, levels: dpc.DiscountedERM(0.99, uniform(low, high))),
    Method("NExCP", False, lambda low, high, levels: dpc.NExCP(0.99, low, high)),
    _grid("OGD", dpc.OGD),
    Method("MultiOGD", False, lambda low, high, levels: dpc.MultiOGD(MANY, low=low, high=high)),
    _grid("SFOGD", dpc.SFOGD),
    _grid("SAOCP", dpc.SAOCP),
    _grid("ACI", dpc.ACI),
    _grid("DtACI", dpc.DtACI),
    _grid("AgACI", dpc.AgACI),
    Method("PID", False, lambda low, high, levels: constant_steps(low, high, levels)),
    _grid("PID, window", dpc.PID),
    _grid("MVP", dpc.MVP),
)
