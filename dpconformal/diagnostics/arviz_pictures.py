"""The picture of uniformity as ArviZ draws it, whichever of its lines is installed."""

import inspect
from typing import Any

import numpy as np

from dpconformal.diagnostics.backend import arviz
from dpconformal.validation import Numbers, Scalar, as_numbers, complain_at, number


def plot_ecdf_pit(pits: Any, prob: Scalar = 0.95, coverage: bool = False, **options: Any) -> Any:
    """
    Draw the ECDF of PITs minus the diagonal with ArviZ.

    ArviZ before version 1 draws a simultaneous band of probability ``prob``. Later ones test each point for its
    part in a departure from uniformity instead and print a p-value; ``prob`` is then where they call it one.
    :func:`dpconformal.diagnostics.pictures.plot_uniformity` draws the same band with either.

    Parameters
    ----------
    pits : array_like, Sbc, or dict of str to array_like
        Numbers in [0, 1]; a panel for each entry of a dict, or for each quantity of an
        :class:`dpconformal.diagnostics.sbc.Sbc`.
    prob : float
        Probability in (0, 1).
    coverage : bool
        Whether to draw the coverage of central intervals.
    **options
        Of ``arviz_plots.plot_ecdf_pit``.

    Returns
    -------
    arviz_plots.PlotCollection
        The picture; its ``savefig`` writes it to a file.

    Examples
    --------
    >>> picture = plot_ecdf_pit(np.random.default_rng(0).random(100))  # doctest: +SKIP
    """
    prob = float(number("prob", prob, 0.0, 1.0, open_low=True, open_high=True))
    draw = arviz("plots").plot_ecdf_pit
    name = "envelope_prob" if "envelope_prob" in inspect.signature(draw).parameters else "ci_prob"
    return draw(as_datatree(pits), coverage=coverage, **{"backend": "matplotlib", name: prob, **options})


def as_datatree(pits: Any) -> Any:
    """Put PITs where ArviZ looks for those of simulation-based calibration."""
    pits = getattr(pits, "pits", pits)
    named = pits if isinstance(pits, dict) else {"pit": pits}
    chains = {key: _chain(key, value) for key, value in named.items()}
    sizes = {key: chain.size for key, chain in chains.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"pits have unequal lengths, {sizes}: ArviZ draws them over the same rounds")
    return arviz("base").from_dict({"prior_sbc": chains})


def _chain(name: str, values: Numbers) -> np.ndarray:
    array = np.asarray(as_numbers(name, values), float)
    complain_at(name, array, ~((array >= 0) & (array <= 1)), "must lie in [0, 1]")
    return array.reshape(1, -1)
