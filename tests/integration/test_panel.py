"""Panels: labelled series replayed at once or chunk by chunk, as each would be alone."""

import dask.array as da
import jax
import numpy as np
import pandas as pd
import pytest
import reference
import xarray as xr
from cases import covering, sequences

import dpconformal as dpc
from dpconformal.engine import kernel, machine
from dpconformal.engine.totals import totals_of
from dpconformal.metrics.loss import best_threshold
from dpconformal.panel import replaying
from dpconformal.panel.replaying import METRICS

LEVELS = np.array([0.0, 0.3, 0.9, 1.0])
LEARNERS = {
    "exact": dpc.Exact(),
    "discounted": dpc.Exact(discount=0.9),
    "quantized": dpc.Quantized(16),
    "bins by length": dpc.Quantized(),
    "erm": dpc.ERM(),
    "aci": dpc.ACI(LEVELS),
    "mvp": dpc.MVP(LEVELS),
}


@pytest.fixture
def scores():
    """Return scores of stores and horizons, by day."""
    values = np.stack(list(sequences(40).values()))[:10].reshape(5, 2, 40)
    days = np.arange("2024-01-01", "2024-02-10", dtype="datetime64[D]").astype("datetime64[ns]")
    return xr.DataArray(values, {"store": list("ABCDE"), "time": days}, ["store", "horizon", "time"], name="residual")


@pytest.mark.parametrize("name", LEARNERS)
def test_each_series_is_as_if_it_were_alone(name, scores):
    panel = dpc.replay_panel(scores, LEARNERS[name], LEVELS)
    for store in scores.store.values:
        for horizon in scores.horizon.values:
            own = {"store": store, "horizon": horizon}
            alone = dpc.replay(LEARNERS[name], scores.sel(own).values, LEVELS)
            np.testing.assert_allclose(panel.thresholds.sel(own), alone.thresholds, atol=1e-12)
            summary = dpc.metrics.summary(alone)
            for metric in METRICS:
                np.testing.assert_allclose(panel[metric].sel(own), summary[metric], atol=1e-9)


@covering(name=LEARNERS, chunks=[{"store": 2, "horizon": 1}, {"store": 3}])
def test_chunks_change_nothing(name, chunks, scores):
    whole = dpc.replay_panel(scores, LEARNERS[name], LEVELS)
    lazy = dpc.replay_panel(scores.chunk(chunks), LEARNERS[name], LEVELS)
    assert all(variable.chunks is not None for variable in lazy.data_vars.values())
    xr.testing.assert_identical(lazy.compute(), whole)


def test_dims_and_coordinates_are_kept(scores):
    scores = scores.assign_coords(region=("store", list("NNSSS"))).transpose("time", "store", "horizon")
    panel = dpc.replay_panel(scores, dpc.Exact(), [0.5, 0.9])
    assert set(panel.thresholds.dims) == {"store", "horizon", "time", "level"}
    assert panel.coverage.dims == ("store", "horizon", "level")
    xr.testing.assert_identical(panel.region, scores.region.reset_coords(drop=True).assign_coords(panel.region.coords))
    assert (panel.time == scores.time).all()
    assert panel.level.values.tolist() == [0.5, 0.9]
    assert "Exact" in panel.attrs["learner"]


def test_horizons_have_delays_of_their_own(scores):
    """Found: horizons were replayed as if each label were known at once."""
    delay = xr.DataArray([0, 6], dims="horizon")
    panel = dpc.replay_panel(scores, dpc.Exact(), [0.5], delay=delay)
    want = dpc.replay(dpc.Exact(), scores.values, [0.5], delay=delay.values)
    np.testing.assert_array_equal(panel.thresholds.values, want.thresholds)
    lazy = dpc.replay_panel(scores.chunk(store=2), dpc.Exact(), [0.5], delay=delay)
    xr.testing.assert_identical(lazy.compute(), panel)
    with pytest.raises(ValueError, match="delay has a dimension 'step': the series have 'store', 'horizon'"):
        dpc.replay_panel(scores, dpc.Exact(), [0.5], delay=delay.rename(horizon="step"))
    with pytest.raises(ValueError, match="different labels along 'store'"):
        dpc.replay_panel(scores, dpc.Exact(), [0.5], delay=xr.DataArray([1] * 5, {"store": list("EDCBA")}, ["store"]))
    with pytest.raises(ValueError, match=r"delay\[1\] = -1: a whole number of rounds"):
        dpc.replay_panel(scores, dpc.Exact(), [0.5], delay=-delay.clip(max=1))


def test_one_series_without_another_dimension():
    panel = dpc.replay_panel(xr.DataArray([0.2, 0.4, 0.6], dims="time"), dpc.Exact(), [0.5])
    assert panel.thresholds.dims == ("time", "level")
    assert int(panel.rounds) == 3


@covering(name=["exact", "quantized", "aci"], chunked=[False, True])
def test_shorter_series_and_gaps(name, chunked, scores):
    rng = np.random.default_rng(0)
    gaps = xr.DataArray(rng.random(scores.shape) < 0.2, dims=scores.dims)
    ends = xr.DataArray(rng.integers(0, 40, scores.shape[:2]), dims=scores.dims[:2])
    ragged = scores.where(~gaps & (xr.DataArray(np.arange(40), dims="time") < ends))
    given = ragged.chunk(store=2) if chunked else ragged
    panel = dpc.replay_panel(given, LEARNERS[name], LEVELS, mask=given.isnull()).compute()
    assert (panel.rounds == ragged.count("time")).all()
    for store in range(5):
        for horizon in range(2):
            own, found = ragged[store, horizon].values, panel.isel(store=store, horizon=horizon)
            there = ~np.isnan(own)
            alone = np.asarray(dpc.replay(LEARNERS[name], own[there], LEVELS).thresholds)
            np.testing.assert_allclose(found.thresholds.values[there], alone, atol=1e-12)
            if not there.any():
                assert np.isnan(found.loss).all()
                continue
            loss = np.array([reference.quantile_loss(alone[:, k], own[there], a) for k, a in enumerate(LEVELS)])
            best = best_of(own[there])
            np.testing.assert_allclose(found.coverage, (own[there][:, None] <= alone).mean(0), atol=1e-12)
            np.testing.assert_allclose(found.loss, loss.mean(-1), atol=1e-12)
            np.testing.assert_allclose(found.regret, loss.sum(-1) - best, atol=1e-9)
            np.testing.assert_allclose(found.mean_threshold, alone.mean(0), atol=1e-12)


@pytest.mark.parametrize("chunked", [False, True])
def test_metrics_only(chunked, scores):
    given = scores.chunk(store=2) if chunked else scores
    panel = dpc.replay_panel(given, dpc.Exact(), LEVELS, keep="summary").compute()
    assert "thresholds" not in panel
    full = dpc.replay_panel(scores, dpc.Exact(), LEVELS)
    for metric in METRICS:
        np.testing.assert_allclose(panel[metric], full[metric], atol=1e-9)


@pytest.mark.parametrize("chunked", [False, True])
def test_hyperparameters_as_dimensions(chunked, scores):
    given = scores.chunk(store=2) if chunked else scores
    discount = xr.DataArray([0.8, 0.95, 0.99], dims="discount")
    panel = dpc.replay_panel(
        given, dpc.Quantized(8), [0.5, 0.9], discount=discount, bins=xr.DataArray([8, 9], dims="b")
    )
    assert panel.thresholds.sizes == {"store": 5, "horizon": 2, "discount": 3, "b": 2, "time": 40, "level": 2}
    for beta in discount.values:
        for number, count in enumerate((8, 9)):
            alone = dpc.replay(dpc.Quantized(count, discount=beta), scores.values, [0.5, 0.9])
            own = panel.sel(discount=beta).isel(b=number).thresholds
            np.testing.assert_allclose(own, alone.thresholds, atol=1e-12)
    assert panel.coverage.dims == ("store", "horizon", "discount", "b", "level")


def test_a_sweep_along_one_dimension_together(scores):
    pairs = {"discount": xr.DataArray([0.8, 0.9], dims="point"), "bins": xr.DataArray([4, 5], dims="point")}
    panel = dpc.replay_panel(scores, dpc.Quantized(8), [0.5], **pairs)
    assert panel.sizes["point"] == 2
    assert panel.discount.dims == ("point",)
    assert panel.bins.values.tolist() == [4, 5]
    alone = dpc.replay(dpc.Quantized(5, discount=0.9), scores.values, [0.5])
    np.testing.assert_allclose(panel.thresholds.isel(point=1), alone.thresholds, atol=1e-12)


def test_thresholds_without_an_end_cost_what_the_loss_says(scores):
    learner = dpc.Exact(dpc.priors.HalfNormal(1.0))
    panel = dpc.replay_panel(scores, learner, [0.5, 1.0], mask=scores > 0.9)
    summary = dpc.metrics.summary(dpc.replay(learner, scores.values, [0.5, 1.0], mask=(scores > 0.9).values))
    for metric in METRICS:
        np.testing.assert_allclose(panel[metric].values, np.asarray(summary[metric]), atol=1e-9)


def test_totals_in_float32_are_added_in_float64():
    rng = np.random.default_rng(0)
    scores, thresholds = rng.random((20, 30)).astype(np.float32), rng.random((20, 30, 3)).astype(np.float32)
    levels = np.array([0.1, 0.5, 0.9])
    wide, wider = scores.astype(float)[..., None], thresholds.astype(float)
    loss = np.maximum(levels * (wide - wider), (levels - 1) * (wide - wider)).sum(1)
    for given in (levels, np.broadcast_to(levels, (30, 3))):
        found = totals_of(thresholds, scores, given)
        np.testing.assert_allclose(found.loss.high, loss, rtol=1e-13)
        np.testing.assert_array_equal(found.covered, (wide <= wider).sum(1))
        np.testing.assert_allclose(found.threshold.high, wider.sum(1), rtol=1e-13)


def test_the_best_threshold_in_hindsight():
    for scores in sequences(30).values():
        found = best_threshold(np, scores[None], LEVELS[None])[1][0]
        best = best_of(scores)
        np.testing.assert_allclose(found, best, atol=1e-12)


def test_one_program_for_all_chunks_and_lengths():
    rng = np.random.default_rng(0)
    ends = rng.integers(1, 33, 37)
    ragged = xr.DataArray(
        np.where(np.arange(33) < ends[:, None], rng.random((37, 33)), np.nan), dims=["series", "time"]
    )
    before = kernel._run_each._cache_size()
    given = ragged.chunk(series=5)  # the last chunk has two
    dpc.replay_panel(
        given, dpc.Exact(), [0.11, 0.37, 0.5, 0.53, 0.59, 0.61, 0.67, 0.71, 0.73], mask=given.isnull()
    ).compute(scheduler="synchronous")
    assert kernel._run_each._cache_size() == before + 1


def test_32_bits_stay_32_bits(scores):
    with jax.enable_x64(False):
        lazy = dpc.replay_panel(scores.astype(np.float32).chunk(store=2), dpc.Exact(), [0.9])
        alone = dpc.replay(dpc.Exact(), scores.values.astype(np.float32), [0.9])
    assert lazy.thresholds.dtype == np.float32
    found = lazy.compute()  # 64 bits are on here, and in the scheduler's threads
    assert found.thresholds.dtype == np.float32
    np.testing.assert_array_equal(found.thresholds, alone.thresholds)


def test_a_task_keeps_to_one_core(monkeypatch, scores):
    seen = []
    for module in (kernel, replaying):
        real = module.blocks_of_sequences
        monkeypatch.setattr(
            module, "blocks_of_sequences", lambda *given, real=real: seen.append(machine.cores()) or real(*given)
        )
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    dpc.replay_panel(scores.chunk(store=2), dpc.Exact(), [0.9]).compute()
    assert set(seen) == {1}
    seen.clear()
    dpc.replay_panel(scores, dpc.Exact(), [0.9])
    assert set(seen) == {4}


def test_scores_lose_what_thresholds_lose(scores):
    """In 32 bits a score at its threshold is covered, whatever it was before."""
    values = xr.DataArray(np.full((2, 50), 0.7), dims=["series", "time"])
    tenths = xr.DataArray(np.random.default_rng(0).integers(1, 10, (2, 50)) / 10, dims=["series", "time"])
    with jax.enable_x64(False):
        for given, learner in ((values, dpc.ERM()), (tenths, dpc.Exact())):
            wanted = dpc.metrics.summary(dpc.replay(learner, given.values, [0.9]))
            for keep in ("all", "summary"):
                panel = dpc.replay_panel(given, learner, [0.9], keep=keep)
                for metric in METRICS:
                    np.testing.assert_allclose(panel[metric], wanted[metric], atol=1e-5)
    half = dpc.replay_panel(scores.astype(np.float16).chunk(store=2), dpc.Exact(), [0.9])
    assert half.thresholds.dtype == half.compute().thresholds.dtype == np.float32


def test_a_schedule_of_the_users_own_is_compiled_once(scores):
    learner = dpc.Exact(schedule=lambda t: t**-0.3)
    before = kernel._run_each._cache_size()
    dpc.replay_panel(scores.chunk(store=1), learner, [0.5]).compute(scheduler="synchronous")
    assert kernel._run_each._cache_size() == before + 1


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (0, 0)])
@pytest.mark.parametrize("keep", ["all", "summary"])
def test_nothing_is_ordinary(shape, keep):
    panel = dpc.replay_panel(xr.DataArray(np.zeros(shape), dims=["series", "time"]), dpc.Exact(), [0.5, 0.9], keep=keep)
    assert panel.coverage.shape == (shape[0], 2)
    assert panel.rounds.values.tolist() == [0] * shape[0]


def test_times_that_are_refused(scores):
    for times, message in {
        (3, 1, 2): "time=1 comes after 3: sort the scores",
        (1, 2, 2): "time=2 comes twice: leave one out",
        (1.0, np.nan, 2.0): r"time\[1\] is missing",
        ("b", "a", "b"): "time='b' comes twice",
    }.items():
        with pytest.raises(ValueError, match=message):
            dpc.replay_panel(scores[..., :3].assign_coords(time=list(times)), dpc.Exact(), [0.5])
    dpc.replay_panel(scores[..., :2].assign_coords(time=["monday", "friday"]), dpc.Exact(), [0.5])


@pytest.mark.parametrize("chunked", [False, True])
def test_a_bad_score_is_named_by_series_and_time(chunked, scores):
    bad = scores.copy()
    bad[3, 1, 7] = np.nan
    given = bad.chunk(store=2) if chunked else bad
    with pytest.raises(ValueError, match=r"scores at store='D', horizon=1, time=2024-01-08 is nan: .*mask="):
        dpc.replay_panel(given, dpc.Exact(), [0.5]).compute()
    bad[3, 1, 7] = 1.5
    given = bad.chunk(store=2) if chunked else bad
    with pytest.raises(ValueError, match=r"store='D', horizon=1, time=2024-01-08 is 1.5: outside the support \[0, 1\]"):
        dpc.replay_panel(given, dpc.Exact(), [0.5]).compute()
    assert int(dpc.replay_panel(given, dpc.Exact(), [0.5], mask=given > 1).rounds.min()) == 39


def test_one_nan_among_a_hundred_thousand_series():
    values = np.full((100_000, 3), 0.5)
    values[77_777, 2] = np.nan
    panel = xr.DataArray(values, {"series": np.arange(100_000)}, ["series", "time"]).chunk(series=10_000)
    with pytest.raises(ValueError, match=r"scores at series=77777, time=2 is nan"):
        dpc.replay_panel(panel, dpc.Quantized(4), [0.5], keep="summary").compute()


def test_a_mask_in_other_chunks(scores):
    mask, wanted = scores > 0.8, dpc.replay_panel(scores, dpc.Exact(), LEVELS, mask=scores > 0.8)
    for values, missing in ((scores.chunk(store=2), mask.chunk(time=7)), (scores, mask.chunk(store=2, time=7))):
        found = dpc.replay_panel(values, dpc.Exact(), LEVELS, mask=missing)
        xr.testing.assert_identical(found.compute(), wanted)
    xr.testing.assert_identical(
        dpc.replay_panel(scores.chunk(store=2), dpc.Exact(), LEVELS, mask=mask).compute(), wanted
    )


def test_what_is_no_panel(scores):
    def refused(match, *given, **named):
        with pytest.raises(ValueError, match=match):
            dpc.replay_panel(*given, **named)

    learner = dpc.Exact()
    refused("scores is a ndarray: pass an xarray.DataArray", scores.values, learner, [0.5])
    refused("dim = 'day': the scores have dimensions 'store', 'horizon', 'time'", scores, learner, [0.5], dim="day")
    refused("keep = 'some'", scores, learner, [0.5], keep="some")
    refused("scores has dtype", scores.astype(str), learner, [0.5])
    refused("4 chunks along 'time': a series is replayed whole", scores.chunk(time=10), learner, [0.5])
    refused("mask: pass an xarray.DataArray of bool", scores, learner, [0.5], mask=scores)
    refused("mask has sizes", scores, learner, [0.5], mask=scores.isnull().isel(store=[0]))
    array = da.from_array(scores.values[:, 0], chunks=(2, 40))
    unknown = xr.DataArray(array[array[:, 0] >= 0], dims=["store", "time"])
    refused("chunks of unknown size", unknown, learner, [0.5])
    refused("has a dimension or coordinate 'level'", scores.assign_coords(level=500), learner, [0.5])
    refused("no value to try", scores, learner, [0.5], discount=xr.DataArray([], dims="discount"))
    unlike = {"discount": xr.DataArray([0.9], {"p": [0]}, ["p"]), "bins": xr.DataArray([9], {"p": [1]}, ["p"])}
    refused("different labels", scores, dpc.Quantized(8), [0.5], **unlike)
    refused(r"levels has shape \(1, 1\)", scores, learner, [[0.5]])
    refused("levels", scores, learner, [1.5])
    refused("rate = ...: Exact has fields", scores, learner, [0.5], rate=xr.DataArray([1.0], dims="rate"))
    refused("discount is a list", scores, learner, [0.5], discount=[0.9])
    refused("has a dimension 'store'", scores, learner, [0.5], discount=xr.DataArray([0.9], dims="store"))
    refused("discount", scores, learner, [0.5], discount=xr.DataArray([1.9], dims="discount"))


BELIEFS = {
    "quantized": dpc.Quantized(100),
    "quantized discounted": dpc.Quantized(100, discount=0.999),
    "bins by length": dpc.Quantized(),
    "exact": dpc.Exact(),
    "exact discounted": dpc.Exact(discount=0.99),
    "dirichlet": dpc.Exact(schedule=dpc.schedules.Dirichlet(5.0)),
    "erm": dpc.ERM(),
    "sliding": dpc.SlidingERM(50),
    "a head": dpc.Corrected(dpc.Quantized()),
}


@covering(name=BELIEFS, length=[1000, 1, 1007])
def test_a_stream_in_parts_is_the_stream(name, length):
    learner, stream = BELIEFS[name], np.random.default_rng(1).integers(0, 300, length) / 299
    sequential = dpc.replay(learner, stream, [0.5]).state
    for given in (stream, da.from_array(stream, chunks=90), xr.DataArray(stream, dims="time").chunk(time=90)):
        state = dpc.fit_belief(given, learner)
        assert int(state.seen) == length
        found, expected = (learner.quantile(each, LEVELS) for each in (state, sequential))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    carried_on = dpc.replay(
        learner, stream[:5], LEVELS, state=dpc.fit_belief(da.from_array(stream, chunks=90), learner)
    )
    expected = dpc.replay(learner, stream[:5], LEVELS, state=sequential)
    np.testing.assert_allclose(carried_on.thresholds, expected.thresholds, atol=1e-12)


def test_the_order_of_time_counts_where_old_scores_do_less():
    stream = np.sort(np.random.default_rng(1).random(500))
    learner = dpc.Quantized(50, discount=0.9)
    up, down = (dpc.fit_belief(da.from_array(each, chunks=33), learner) for each in (stream, stream[::-1]))
    assert learner.quantile(up, 0.5) > 0.9 > 0.1 > learner.quantile(down, 0.5)


def test_streams_that_are_refused():
    stream = da.from_array(np.where(np.arange(5000) == 4321, np.nan, 0.5), chunks=1000)
    with pytest.raises(ValueError, match="scores at index=4321 is nan"):
        dpc.fit_belief(stream)
    with jax.enable_x64(False), pytest.raises(ValueError, match="1e\\+300"):
        dpc.fit_belief(np.array([0.1, 1e300]), dpc.Exact(dpc.priors.HalfNormal(1.0)))
    with pytest.raises(ValueError, match=r"scores has shape \(2, 3\): pass one stream"):
        dpc.fit_belief(np.ones((2, 3)))
    with pytest.raises(ValueError, match="does not merge; take Quantized or Exact"):
        dpc.fit_belief(stream, dpc.ACI([0.5]))
    with pytest.raises(ValueError, match=r"call scores\.compute_chunk_sizes"):
        dpc.fit_belief(stream[stream > 0])


def test_an_index_of_dates_in_words(scores):
    hours = pd.date_range("2024-01-01 00:00", periods=40, freq="h")
    bad = scores.assign_coords(time=hours).copy()
    bad[0, 0, 5] = -1
    with pytest.raises(ValueError, match=r"time=2024-01-01T05:00 is -1\.0"):
        dpc.replay_panel(bad, dpc.Exact(), [0.5])


def best_of(scores):
    return [reference.best_total_loss(scores, np.full(len(scores), level)) for level in LEVELS]
