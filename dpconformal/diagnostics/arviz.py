"""Runs, draws and fits as ArviZ takes them: labelled trees, a table of convergence, a picture of PITs."""

import inspect
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from dpconformal.diagnostics.calibration import Sbc, as_unit_numbers, check_probability
from dpconformal.dirichlet import Fit
from dpconformal.metrics.arrays import arrays_of, batch_axes, checked_run, observed_rounds
from dpconformal.metrics.summary import as_written
from dpconformal.replay import Replay, Summary
from dpconformal.validation import Numbers, Scalar

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

_LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
_NINE = np.arange(1, 10) / 10  # levels whose mean quantiles are the points at which F is looked at
R_HAT, ESS_PER_CHAIN = 1.01, 100  # Vehtari et al. (2021)


def to_datatree(data: Any, x: Numbers = None, levels: Numbers = None) -> "xr.DataTree":
    """
    Convert to the tree of labelled arrays that ArviZ works on, and that NetCDF and Zarr can hold.

    A replay has no chains nor draws, so its arrays are not a posterior. They go to ``observed_data`` (``score``) and
    ``constant_data`` (``threshold`` and ``covered`` over time and level; the ``delay`` is an attribute, or a variable
    where sequences differ in it). A leading axis is ``batch``; several are ``batch_0``, ``batch_1`` and so on. Levels
    that change by round or by sequence are a variable ``level`` along ``query``.

    Draws of a Dirichlet process and fits go to ``posterior``: ``F`` over (chain, draw, x), ``q`` over (chain, draw,
    level); for a fit also its own sites, and ``sample_stats``. A dictionary goes through ``arviz_base.from_dict``.

    Parameters
    ----------
    data : Replay, Draws, Fit or dict
        What to convert; draws are anything with ``cdf(x)`` of shape (D, X) and ``quantile(levels)`` of shape (D, A).
    x : array_like, shape (X,), optional
        Where to look at F, for draws and fits. By default at the mean quantiles of levels 0.1 to 0.9.
    levels : array_like, shape (A,), optional
        Levels of q, for draws and fits; six from 0.1 to 0.95 by default.

    Returns
    -------
    xarray.DataTree
        The groups. Ask a group for ``["level"]``, since ``.level`` is its depth in the tree. The packages to store it
        (``tree.to_netcdf(path, engine="h5netcdf")``, ``tree.to_zarr(path, consolidated=False)``) come with the extra
        ``panel``.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> tree = to_datatree(dpc.replay(dpc.Exact(), [0.2, 0.4, 0.6], levels=[0.5, 0.9]))
    >>> tree["constant_data"]["covered"].sel(level=0.9).values
    array([ True,  True,  True])
    """
    import xarray as xr

    if isinstance(data, (Replay, Summary, dict)):
        for name, value in (("x", x), ("levels", levels)):
            if value is not None:
                raise ValueError(f"{name} is given: only draws and fits are asked for F and q; leave it out")
        if isinstance(data, dict):
            return _from_dict(data)
        return xr.DataTree.from_dict(_run_groups(data), name="run")
    if not (hasattr(data, "cdf") and hasattr(data, "quantile")):
        raise ValueError(f"data is a {type(data).__name__}: pass a Replay, draws, a Fit or a dict of groups")
    return _from_samples(data, x, levels)


def _from_dict(groups: dict[str, Any], **options: Any) -> "xr.DataTree":
    _load_numpyro()
    import arviz_base

    return arviz_base.from_dict(groups, **options)


def _load_numpyro() -> None:
    """Import all of NumPyro, ahead of ArviZ."""
    # ArviZ 1.x puts a lazy NumPyro in its place, of which a user's ``import numpyro.distributions`` would execute the
    # parts twice; then no model can be stated.
    import numpyro

    assert numpyro.__version__  # executes one that is lazy already


def from_datatree(tree: "xr.DataTree") -> Replay:
    """
    Get a stored run back, for the metrics.

    Parameters
    ----------
    tree : xarray.DataTree
        Made by :func:`to_datatree` of a replay, perhaps written and read again.

    Returns
    -------
    Replay
        Thresholds, scores and levels, in the precision that JAX's setting allows. There is no learner and no state:
        metrics that go through the beliefs again need the run itself.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> run = dpc.replay(dpc.Exact(), [0.2, 0.4, 0.6], levels=[0.5, 0.9])
    >>> again = from_datatree(to_datatree(run))
    >>> bool((again.thresholds == run.thresholds).all()), dpc.metrics.coverage(again).round(3)
    (True, array([0.333, 1.   ]))
    """
    for place in ("observed_data/score", "constant_data/threshold"):
        group, name = place.split("/")
        if group not in tree.children or name not in tree[group].data_vars:
            raise ValueError(f"tree has no {place}: pass a tree that to_datatree made of a replay")
    constant, score = tree["constant_data"], tree["observed_data"]["score"]
    thresholds, scores, levels = (jnp.asarray(a.values) for a in (constant["threshold"], score, constant["level"]))
    # Trees of earlier versions have none; and one whose rounds were taken out is of no single delay.
    if "delay" in constant.data_vars:
        return Replay(thresholds, None, scores, levels, delay=constant["delay"].values)
    delay = int(constant.attrs.get("delay", 0))
    return Replay(thresholds, None, scores, levels, delay=None if delay < 0 else delay)


def _run_groups(run: Any) -> dict[str, Any]:
    """Group the arrays of a run, without the rounds that have no score."""
    import xarray as xr

    parts = arrays_of(run)
    time = {"time": observed_rounds(run)}
    run = checked_run(run).observed()
    thresholds, scores, levels = (np.asarray(a) for a in (run.thresholds, run.scores, run.levels))
    batch = batch_axes(run)
    last = "level" if levels.ndim == 1 else "query"
    dims = [*batch, "time", last]
    variables = {"threshold": (dims, thresholds), "covered": (dims, parts.scores <= parts.thresholds)}
    if levels.ndim > 1:
        variables["level"] = (dims if levels.ndim == len(dims) else [*batch, last], levels)
    coords = time | ({"level": as_written(levels)} if levels.ndim == 1 else {})
    about = {"creation_library": "dpconformal", "learner": repr(run.learner)}
    if np.ndim(run.delay):
        variables["delay"] = (batch, np.asarray(run.delay))
    else:
        about["delay"] = -1 if run.delay is None else int(run.delay)  # type: ignore[assignment]
    return {
        "/": xr.Dataset(attrs=about),
        "observed_data": xr.Dataset({"score": ([*batch, "time"], scores)}, time, attrs=about),
        "constant_data": xr.Dataset(variables, coords, attrs=about),
    }


def _from_samples(data: Any, x: Numbers, levels: Numbers) -> "xr.DataTree":
    """Convert F and q of draws or a fit, and what else a fit has."""
    fitted = isinstance(data, Fit)

    def by_chain(values: Any) -> np.ndarray:
        return np.asarray(values) if fitted else np.asarray(values)[None]

    levels = np.atleast_1d(np.asarray(_LEVELS if levels is None else levels))
    quantile = by_chain(data.quantile(levels))
    if quantile.ndim != 3:
        raise ValueError(f"data is a {type(data).__name__} with one distribution: pass draws of many, or a Replay")
    if x is None:  # mean quantiles, rounded to a thousandth of their range, to be read
        means = by_chain(data.quantile(_NINE)).astype(float).mean(axis=(0, 1))
        width = means[-1] - means[0]
        x = np.unique(means.round(int(np.clip(3 - np.floor(np.log10(width)), 0, 15)) if width > 0 else 15))
    x = np.atleast_1d(np.asarray(x))
    groups = {"posterior": {"F": by_chain(data.cdf(x)), "q": quantile}}
    about = {}
    if fitted:
        about = {"inference_library": "numpyro", "model": type(data.model).__name__}
        for name in data.samples:
            if name in ("F", "q", "x", "level"):
                raise ValueError(f"data.samples has a site {name!r}, which the tree needs for itself: rename it")
        groups = {"sample_stats": data.stats, "posterior": groups["posterior"] | data.samples}
    return _from_dict(
        {group: {name: np.asarray(values) for name, values in each.items()} for group, each in groups.items()},
        name="fit" if fitted else "draws",
        coords={"x": x, "level": levels},
        dims={"F": ["x"], "q": ["level"]},
        check_conventions=False,  # few draws of many chains are welcome
        attrs=dict.fromkeys(["/", *groups], about),
    )


def summary(data: Any, x: Numbers = None, levels: Numbers = None, names: Sequence[str] | None = None) -> "pd.DataFrame":
    """
    Tabulate posterior means with their Monte Carlo errors and convergence, and warn of what is bad.

    By default of F, of q and of sites that are a single number. The sites of a mixture are left out, because its
    components switch labels: their r_hat is bad in a good fit.

    Parameters
    ----------
    data : Fit, Draws or xarray.DataTree
        A fit, or a tree with a group ``posterior``.
    x, levels : array_like, optional
        Where to look at F, and levels of q, for a fit or draws, as in :func:`to_datatree`.
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
    _load_numpyro()
    from arviz_stats.summary import summary as tabulate

    tree = data if hasattr(data, "children") else to_datatree(data, x, levels)
    if hasattr(data, "children") and not (x is None and levels is None):
        raise ValueError("x and levels are given: a tree already has its points; leave them out")
    if "posterior" not in tree.children:
        raise ValueError(f"data has groups {sorted(tree.children)}: a summary needs posterior")
    posterior = tree["posterior"].to_dataset()
    if names is None:
        names = [str(name) for name, v in posterior.items() if name in ("F", "q") or {*v.dims} == {"chain", "draw"}]
        if not names:
            raise ValueError(
                f"names is not given, and none of {list(posterior)} is a single number: say which to tabulate"
            )
    for i, name in enumerate(names):
        if name not in posterior.data_vars:
            raise ValueError(f"names[{i}] = {name!r}: the posterior has {', '.join(map(str, posterior.data_vars))}")
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # r_hat of a constant is 0/0
        table = tabulate(tree, var_names=names, kind="all", round_to="none")
    # Numbers that are the same in every draw; their sd may be rounding.
    values = posterior[list(names)]
    spread = values.max(("chain", "draw")) - values.min(("chain", "draw"))
    constant = np.concatenate([np.ravel(spread[name]) for name in names]) == 0
    table = table[["mean", "sd", "mcse_mean", "ess_bulk", "ess_tail", "r_hat"]].astype(float)
    table["verdict"] = [
        "constant" if fixed else _verdict(row, posterior.sizes["chain"])
        for fixed, (_, row) in zip(constant, table.iterrows(), strict=True)
    ]
    for label, row in table[~table["verdict"].isin(["good", "constant"])].iterrows():
        mixed = "run longer chains (draws, warmup)" if row["r_hat"] <= 1.1 else "the chains disagree: do not use it"
        warnings.warn(f"{label} = {row['mean']:.4g}: {row['verdict']}; {mixed}", stacklevel=2)
    diverging = tree["sample_stats"].get("diverging") if "sample_stats" in tree.children else None
    if diverging is not None and diverging.any():
        warnings.warn(
            f"diverging = {int(diverging.sum())} of {diverging.size} draws: parts of the posterior were not "
            "reached; fit again with a larger target_accept_prob, such as 0.95",
            stacklevel=2,
        )
    return table


def _verdict(row: Any, chains: int) -> str:
    """Say what is wrong with a number, if anything is."""
    faults = []
    if not row["r_hat"] <= R_HAT and chains > 1:
        faults.append(f"r_hat {row['r_hat']:.3g} is above {R_HAT}")
    for name in ("ess_bulk", "ess_tail"):
        if not row[name] >= ESS_PER_CHAIN * chains:
            faults.append(f"{name} {row[name]:.0f} is below {ESS_PER_CHAIN * chains}")
    return "; ".join(faults) or "good"


def plot_ecdf_pit(pits: Any, prob: Scalar = 0.95, coverage: bool = False, **options: Any) -> Any:
    """
    Draw the ECDF of PITs minus the diagonal with ArviZ.

    ArviZ before version 1 draws a simultaneous band of probability ``prob``. Later ones test each point for its
    part in a departure from uniformity instead and print a p-value; ``prob`` is then where they call it one.
    :func:`dpconformal.diagnostics.plot_uniformity` draws the same band with either.

    Parameters
    ----------
    pits : array_like, Sbc, or dict of str to array_like
        Numbers in [0, 1]; a panel for each entry of a dict, or for each quantity of an
        :class:`dpconformal.diagnostics.Sbc`.
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
    prob = check_probability("prob", prob)
    _load_numpyro()
    try:
        from arviz_plots import plot_ecdf_pit as draw
    except ImportError as error:
        raise ImportError("this plot needs arviz_plots: pip install '.[plots]' in a clone of dpconformal") from error
    option = "envelope_prob" if "envelope_prob" in inspect.signature(draw).parameters else "ci_prob"
    if isinstance(pits, Sbc):
        pits = pits.pits
    named = pits if isinstance(pits, dict) else {"pit": pits}
    chains = {name: as_unit_numbers(name, values).reshape(1, -1) for name, values in named.items()}
    sizes = {name: chain.size for name, chain in chains.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"pits have unequal lengths, {sizes}: ArviZ draws them over the same rounds")
    tree = _from_dict({"prior_sbc": chains})  # where ArviZ looks for the PITs of simulation-based calibration
    return draw(tree, coverage=coverage, **{"backend": "matplotlib", option: prob, **options})
