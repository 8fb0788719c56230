"""Have the chains mixed? A table of F and of the thresholds, and warnings where it says no."""

import inspect
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from dpconformal.diagnostics.datatree import to_datatree
from dpconformal.validation import Numbers, Scalar, as_numbers, check_float, raise_at

if TYPE_CHECKING:
    import pandas as pd

R_HAT, ESS_PER_CHAIN = 1.01, 100  # Vehtari et al. (2021)


def summary(data: Any, x: Numbers = None, levels: Numbers = None, names: Any = None) -> "pd.DataFrame":
    """
    Tabulate posterior means with their Monte Carlo errors and convergence, and warn of what is bad.

    By default of F, of q and of sites that are a single number. The sites of a mixture are left out, because its
    components switch labels: their r_hat is bad in a good fit.

    Parameters
    ----------
    data : Fit, Draws or xarray.DataTree
        A fit, or a tree with a group ``posterior``.
    x, levels : array_like, optional
        Where to look at F, and levels of q, for a fit or draws: see
        :func:`~dpconformal.diagnostics.datatree.to_datatree`.
    names : sequence of str, optional
        Variables to tabulate instead.

    Returns
    -------
    pandas.DataFrame
        One row a number, with ``mean``, ``sd``, ``mcse_mean``, ``ess_bulk``, ``ess_tail``, ``r_hat`` and ``verdict``.
        The verdict is ``good``, what is wrong, or ``constant``: a quantile that is the same in every draw, such as
        one of level 0 or at an atom, has no r_hat, and nothing is wrong with it.

    Warns
    -----
    UserWarning
        For every number with r_hat above 1.01 or an effective sample size below 100 a chain, and for divergences.

    Examples
    --------
    >>> import numpy as np
    >>> draws = np.random.default_rng(0).normal(size=(4, 500))
    >>> table = summary(to_datatree({"posterior": {"location": draws}}))
    >>> table.loc["location", "verdict"], bool(table.loc["location", "r_hat"] < 1.01)
    ('good', True)
    """
    from arviz_stats.summary import summary as tabulate

    tree = data if hasattr(data, "children") else to_datatree(data, x, levels)
    if hasattr(data, "children") and not (x is None and levels is None):
        raise ValueError("x and levels are given: a tree already has its points; leave them out")
    if "posterior" not in tree.children:
        raise ValueError(f"data has groups {sorted(tree.children)}: a summary needs posterior")
    names = _names(tree["posterior"], names)
    chains = tree["posterior"].sizes["chain"]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # r_hat of a constant is 0/0
        table = tabulate(tree, var_names=names, kind="all", round_to="none")
        constant = _constant(tree["posterior"], names)
    table = table[["mean", "sd", "mcse_mean", "ess_bulk", "ess_tail", "r_hat"]].astype(float)
    table["verdict"] = [
        "constant" if fixed else _verdict(row, chains)
        for fixed, (_, row) in zip(constant, table.iterrows(), strict=True)
    ]
    _warn(table, tree)
    return table


def _names(posterior: Any, names: Any) -> list[str]:
    if names is None:
        return [str(n) for n, v in posterior.data_vars.items() if n in ("F", "q") or set(v.dims) == {"chain", "draw"}]
    known = [str(name) for name in posterior.data_vars]
    for i, name in enumerate(names):
        if name not in known:
            raise ValueError(f"names[{i}] = {name!r}: the posterior has {', '.join(known)}")
    return list(names)


def _constant(posterior: Any, names: list[str]) -> Any:
    """Tell which numbers are the same in every draw: their distance to the first is 0, where sd may be rounding."""
    import xarray as xr
    from arviz_stats.summary import summary as tabulate

    values = posterior.to_dataset()[names]
    apart = abs(values - values.isel(chain=0, draw=0, drop=True))
    tree = xr.DataTree.from_dict({"posterior": apart})
    table = tabulate(tree, var_names=names, kind="stats", round_to="none")
    return table["mean"].to_numpy(float) == 0


def _verdict(row: Any, chains: int) -> str:
    faults = []
    if not row["r_hat"] <= R_HAT and chains > 1:
        faults.append(f"r_hat {row['r_hat']:.3g} is above {R_HAT}")
    for name in ("ess_bulk", "ess_tail"):
        if not row[name] >= ESS_PER_CHAIN * chains:
            faults.append(f"{name} {row[name]:.0f} is below {ESS_PER_CHAIN * chains}")
    return "; ".join(faults) or "good"


def _warn(table: Any, tree: Any) -> None:
    for label, row in table.iterrows():
        if row["verdict"] in ("good", "constant"):
            continue
        mixed = "run longer chains (draws, warmup)" if row["r_hat"] <= 1.1 else "the chains disagree: do not use it"
        warnings.warn(f"{label} = {row['mean']:.4g}: {row['verdict']}; {mixed}", stacklevel=3)
    if "sample_stats" in tree.children and "diverging" in tree["sample_stats"].data_vars:
        diverging = tree["sample_stats"]["diverging"]
        if diverging.any():
            warnings.warn(
                f"diverging = {int(diverging.sum())} of {diverging.size} draws: parts of the posterior were not "
                "reached; fit again with a larger target_accept_prob, such as 0.95",
                stacklevel=3,
            )


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
        :class:`dpconformal.diagnostics.studies.Sbc`.
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
    prob = float(check_float("prob", prob, 0.0, 1.0, open_low=True, open_high=True))
    try:
        from arviz_plots import plot_ecdf_pit as draw
    except ImportError as error:
        raise ImportError("this plot needs arviz_plots: pip install '.[plots]' in a clone of dpconformal") from error
    name = "envelope_prob" if "envelope_prob" in inspect.signature(draw).parameters else "ci_prob"
    return draw(as_datatree(pits), coverage=coverage, **{"backend": "matplotlib", name: prob, **options})


def as_datatree(pits: Any) -> Any:
    """Put PITs where ArviZ looks for those of simulation-based calibration."""
    import arviz_base

    pits = getattr(pits, "pits", pits)
    named = pits if isinstance(pits, dict) else {"pit": pits}
    chains = {key: _chain(key, value) for key, value in named.items()}
    sizes = {key: chain.size for key, chain in chains.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"pits have unequal lengths, {sizes}: ArviZ draws them over the same rounds")
    return arviz_base.from_dict({"prior_sbc": chains})


def _chain(name: str, values: Numbers) -> np.ndarray:
    array = np.asarray(as_numbers(name, values), float)
    raise_at(name, array, ~((array >= 0) & (array <= 1)), "must lie in [0, 1]")
    return array.reshape(1, -1)
