"""
Five ways to draw a distribution from the posterior of a Dirichlet process.

``split``: the prior's part by a few sticks, the scores' part exactly. ``grid``: masses of equal bins, exact at their
edges. ``sticks``: sticks alone, as in textbooks; they need many more as scores come in. ``urn``: scores to come, drawn
one after the other, and weighed at random. ``bootstrap``: without the prior, the limit of a vanishing concentration.

All have the right mean; only a look at the spread tells a truncated one from a good one.
"""

from collections.abc import Callable

from dpconformal.dirichlet.bootstrap import bootstrap
from dpconformal.dirichlet.draws import Draws
from dpconformal.dirichlet.grid_sampler import grid
from dpconformal.dirichlet.stick_samplers import split, sticks
from dpconformal.dirichlet.urn import urn

SAMPLERS: dict[str, Callable[..., Draws]] = {
    "split": split,
    "grid": grid,
    "sticks": sticks,
    "urn": urn,
    "bootstrap": bootstrap,
}
