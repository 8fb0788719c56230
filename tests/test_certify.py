"""Certificates: they pass where the theorems apply, and say what is wrong and where if something is."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import reference
import xarray as xr
from cases import BELIEFS, sequences

import dpconformal as dpc
from dpconformal.theory import certify

LEVELS = [0.5, 0.7, 0.9]
IID = np.random.default_rng(3).random(400)


def line(certificate, check, level):
    return certificate.dataset.sel(check=check, level=level)


@pytest.fixture(scope="module")
def run():
    return dpc.replay(dpc.Exact(), IID, LEVELS)


@pytest.mark.parametrize("name", BELIEFS)
def test_every_belief_keeps_what_is_promised_for_any_sequence(name):
    every = np.stack(list(sequences(96).values()))
    certificate = certify(dpc.replay(BELIEFS[name], every, LEVELS))
    promised = certificate.dataset.sel(check=["order", "optimality", "regret", "discounted regret"])
    assert not (promised.verdict == "FAIL").any()
    claimed = {"order", "optimality", "regret" if BELIEFS[name].discount is None else "discounted regret"}
    for check in promised.check.values:
        assert (promised.verdict.sel(check=check) == ("pass" if check in claimed else "no claim")).all()
    iid = list(sequences(96)).index("uniform")
    assert not (certificate.dataset.verdict.isel(batch=iid) == "FAIL").any()


def test_numbers_are_those_of_the_metrics(run):
    table = certify(run).dataset
    np.testing.assert_allclose(table.seen.sel(check="regret"), dpc.metrics.regret(run), atol=1e-12)
    np.testing.assert_allclose(table.high.sel(check="regret"), dpc.theory.path_bound(run), atol=1e-12)
    np.testing.assert_allclose(table.seen.sel(check="coverage"), dpc.metrics.coverage(run))
    fading = dpc.replay(dpc.Quantized(20, discount=0.95), IID, LEVELS)
    table = certify(fading).dataset
    seen, bound = table.sel(check="discounted regret").seen, table.sel(check="discounted regret").high
    np.testing.assert_allclose(seen, dpc.metrics.discounted_regret(fading, 0.95), atol=1e-12)
    np.testing.assert_allclose(bound, dpc.theory.path_bound(fading), atol=1e-12)
    assert table.attrs["rounds"] == 400


def test_one_tampered_threshold_is_found(run):
    r = float(run.thresholds[321, 1])
    for change in (1e-3, -1e-3, 1e-7):
        certificate = certify(run._replace(thresholds=run.thresholds.at[321, 1].set(r + change)))
        assert not certificate.passed
        assert line(certificate, "optimality", 0.7)["round"] == 322
        assert set(certificate.dataset.level.values[(certificate.dataset.verdict == "FAIL").any("check")]) == {0.7}
    assert any("optimality, level 0.7" in text and "from round 322 on" in text for text in certificate.failures)


def test_thresholds_that_cross_are_found(run):
    swapped = run.thresholds.at[99].set(run.thresholds[99, ::-1])
    certificate = certify(run._replace(thresholds=swapped))
    assert line(certificate, "order", 0.5)["round"] == line(certificate, "order", 0.9)["round"] == 100
    assert line(certificate, "order", 0.7).verdict == "FAIL"


def test_thresholds_that_know_the_future_are_found(run):
    ahead = jnp.roll(run.thresholds, -1, axis=0)
    assert line(certify(run._replace(thresholds=ahead)), "optimality", 0.5).verdict == "FAIL"


def test_a_score_that_was_changed_afterwards_is_found(run):
    changed = run._replace(scores=run.scores.at[10].set(0.999))
    assert line(certify(changed), "optimality", 0.5)["round"] >= 12


def test_another_schedule_than_claimed_is_found(run):
    claimed = run._replace(learner=dpc.Exact(schedule=dpc.schedules.Dirichlet(5.0)))
    assert not certify(claimed).passed


def test_following_the_leader_fails_on_switching_scores():
    scores = 1 - dpc.streams.alternating(400)
    certificate = certify(dpc.replay(dpc.ERM(), scores, LEVELS))
    failed = line(certificate, "regret", 0.5)
    assert failed.verdict == "FAIL"
    assert failed.seen > 90 > failed.high
    assert 1 < failed["round"] < 20
    assert line(certificate, "regret", 0.7).verdict == "pass"
    assert line(certificate, "optimality", 0.5).verdict == "no claim"
    # The leash is what makes the difference.
    assert certify(dpc.replay(dpc.Exact(), scores, LEVELS)).passed


def test_a_drop_in_the_middle_of_a_discounted_run_is_found():
    fading = dpc.replay(dpc.Exact(discount=0.9), IID, LEVELS)
    wrong = fading.thresholds.at[100:140, 0].set(1.0)
    certificate = certify(fading._replace(thresholds=wrong))
    failed = line(certificate, "discounted regret", 0.5)
    assert 100 <= failed["round"] <= 140
    assert failed.seen > failed.high  # at the end it is forgotten: what is shown is the worst


def test_shifted_coverage_fails_the_band(run):
    low = certify(run._replace(thresholds=run.thresholds * 0.8, learner=None))
    assert line(low, "coverage", 0.9).verdict == "FAIL"
    assert certify(run._replace(learner=None)).passed


def test_a_smaller_delta_widens_the_band(run):
    wide, narrow = (certify(run, delta).dataset.sel(check="coverage") for delta in (1e-4, 0.2))
    assert np.all(wide.low < narrow.low)
    assert np.all(wide.high > narrow.high)


def test_the_band_of_coverage_is_that_of_exact_counts():
    """δ/2 on each side. Finds δ or δ/4 there, n in the place of n + 1, and the concentration of another schedule."""
    scores, levels = IID[:40], [0.47, 0.83]
    for schedule, weights in (
        (None, np.sqrt(np.arange(1, 41)) + 1),
        (dpc.schedules.Dirichlet(3.0), np.full(40, 3.0)),
    ):
        found = certify(dpc.replay(dpc.Exact(schedule=schedule), scores, levels), delta=0.06).dataset
        band = found.sel(check="coverage")
        want = np.array(reference.coverage_band(levels, weights, 0.06)) / 40
        np.testing.assert_allclose(band.low, want[:, 0], atol=1e-12)
        np.testing.assert_allclose(band.high, want[:, 1], atol=1e-12)
        for other in (0.03, 0.12):  # the band is not that of another δ by chance
            assert not np.allclose(np.array(reference.coverage_band(levels, weights, other)) / 40, want)


def test_the_band_of_a_group_has_its_share_of_delta():
    """δ/G to each of G groups, half of it on each side. Finds δ that is not divided, or divided by all nodes."""
    weights = dpc.schedules.Constant(0.2), dpc.schedules.InverseSqrt()
    learner, context = dpc.Hierarchical(3, concentrations=weights), np.arange(120) % 3
    found = certify(dpc.replay(learner, IID[:120], [0.47, 0.83], context=context), delta=0.2).dataset
    band = found.sel(check="coverage")
    concentrations = np.sqrt(np.arange(1, 41)) + 1
    want = np.array(reference.coverage_band([0.47, 0.83], concentrations, 0.2 / 3)) / 40
    for group in range(3):
        np.testing.assert_allclose(band.low.sel(group=group), want[:, 0], atol=1e-12)
        np.testing.assert_allclose(band.high.sel(group=group), want[:, 1], atol=1e-12)
    for other in (0.2, 0.2 / 4, 0.2 / 6):
        assert not np.allclose(np.array(reference.coverage_band([0.47, 0.83], concentrations, other)) / 40, want)


def test_a_run_in_two_parts_passes_in_both(run):
    for learner in (dpc.Exact(), dpc.Exact(discount=0.95), dpc.Quantized(20)):
        first = dpc.replay(learner, IID[:150], LEVELS)
        second = dpc.replay(learner, IID[150:], LEVELS, first.state)
        assert certify(first).passed
        assert certify(second).passed
        assert not certify(second._replace(start=None)).passed  # without its past it is another belief


def test_prints_well(run):
    text = repr(certify(run))
    assert "all lines pass" in text
    assert "no claim for this learner: discounted regret" in text
    assert max(len(row) for row in text.splitlines()) <= 100
    html = certify(run)._repr_html_()
    assert html.startswith("<pre>")
    assert "all lines pass" in html
    batch = certify(dpc.replay(dpc.ERM(), np.stack([IID, 1 - dpc.streams.alternating(400)]), LEVELS))
    assert "2 sequences" in repr(batch)
    assert "FAIL in 1 from round" in repr(batch)
    assert batch.failures[0].startswith("batch 1, regret, level 0.5")


def test_dataset_goes_to_a_file_and_back(run, tmp_path):
    table = certify(run).dataset
    table.to_netcdf(tmp_path / "certificate.nc", engine="scipy")
    with xr.open_dataset(tmp_path / "certificate.nc", engine="scipy") as back:
        assert (back.verdict.astype(str) == table.verdict).all()
        np.testing.assert_allclose(back.high, table.high)


def test_runs_of_no_and_one_round_and_many_axes():
    assert certify(dpc.replay(dpc.Exact(), [], LEVELS)).passed
    assert certify(dpc.replay(dpc.Exact(discount=0.9), [], LEVELS)).passed
    assert certify(dpc.replay(dpc.ERM(), [], LEVELS)).passed
    assert certify(dpc.replay(dpc.Exact(), [0.3], LEVELS)).passed
    table = certify(dpc.replay(dpc.Exact(), IID.reshape(2, 2, 100), LEVELS)).dataset
    assert table.seen.dims == ("batch_0", "batch_1", "check", "level")


def test_single_precision_passes_and_is_found_out_all_the_same():
    with jax.enable_x64(False):
        run = dpc.replay(dpc.Exact(discount=0.99), IID, LEVELS)
        assert run.thresholds.dtype == jnp.float32
        certificate = certify(run)
        assert certificate.passed
        assert certificate.dataset.level.values.tolist() == LEVELS
        assert not certify(run._replace(thresholds=run.thresholds.at[200, 0].add(0.01))).passed


HEADS = {
    "corrected": dpc.Corrected(),
    "corrected in bins": dpc.Corrected(dpc.Quantized(16)),
    "credible": dpc.Credible(),
}
SWAYING = np.clip(np.array(LEVELS) + 0.1 * np.sin(np.arange(400.0))[:, None], 0, 1)


def corruptions(run):
    """Thresholds that are a little off, scores in another order, and levels that were not the ones asked for."""
    scores = np.array(run.scores)
    for row in scores.reshape(-1, scores.shape[-1]):
        here = np.flatnonzero(~np.isnan(row))
        row[here] = row[np.random.default_rng(0).permutation(here)]
    yield run._replace(thresholds=run.thresholds + 1e-3)
    yield run._replace(scores=jnp.asarray(scores))
    yield run._replace(levels=np.asarray(run.levels) + 0.02)


@pytest.mark.parametrize("name", HEADS)
def test_heads_are_held_to_the_quantiles_they_ask_for(name):
    """Only their coverage was looked at: small changes of thresholds, orders and levels passed."""
    head, claimed = HEADS[name], "pass" if isinstance(HEADS[name], dpc.Corrected) else "no claim"
    plain = dpc.replay(head, IID, LEVELS)
    assert (certify(plain).dataset.verdict.sel(check="optimality") == "pass").all()
    assert (certify(plain).dataset.verdict.sel(check="regret") == claimed).all()
    mask = np.random.default_rng(1).random((2, 200)) < [[0.2], [0.1]]
    late = dpc.replay(head, IID.reshape(2, 200), LEVELS, mask=mask, delay=[0, 4])
    assert (certify(late).dataset.verdict.sel(check="optimality") == "pass").all()
    assert (certify(late).dataset.verdict.sel(check="regret") == [[claimed], ["no claim"]]).all()
    for honest in (plain, late):
        assert certify(honest).passed
        for wrong in corruptions(honest):
            failed = certify(wrong).dataset.verdict.sel(check="optimality") == "FAIL"
            assert failed.any("level").all()


def test_a_head_that_wastes_its_thresholds_fails_the_bound_of_its_regret():
    run = dpc.replay(dpc.Corrected(), IID, LEVELS)
    wasted = certify(run._replace(thresholds=jnp.ones_like(run.thresholds)))
    assert line(wasted, "regret", 0.5).verdict == "FAIL"
    unbounded = dpc.replay(dpc.Corrected(dpc.Exact(dpc.priors.HalfCauchy())), IID, LEVELS)
    assert (certify(unbounded).dataset.verdict.sel(check="regret") == "no claim").all()  # it says ∞ at first


@pytest.mark.parametrize(
    "learner",
    [dpc.Exact(discount=0.9), dpc.Quantized(16), HEADS["corrected in bins"], HEADS["credible"], dpc.ERM()],
)
def test_levels_that_change_by_round_are_certified(learner):
    """They were refused. Nothing is claimed of regret, which is against one level."""
    run = dpc.replay(learner, IID, SWAYING)
    found = certify(run)
    assert found.passed
    assert "#1" in repr(found)
    verdict = found.dataset.verdict
    assert (verdict.sel(check=["regret", "discounted regret"]) == "no claim").all()
    if not isinstance(learner, dpc.ERM):
        assert (verdict.sel(check="optimality") == "pass").all()
        wrong = certify(run._replace(thresholds=run.thresholds.at[321, 1].add(1e-4)))
        assert wrong.dataset["round"].sel(check="optimality").values.tolist() == [0, 322, 0]
        late = dpc.replay(learner, IID, SWAYING, delay=3)
        assert (certify(late).dataset.verdict.sel(check="optimality") == "pass").all()
        assert not certify(late._replace(levels=late.levels[::-1])).passed


def test_levels_that_only_seem_to_change_are_fixed_ones(run):
    found = certify(dpc.replay(dpc.Exact(), IID, np.tile(LEVELS, (400, 1)))).dataset
    xr.testing.assert_allclose(found.drop_vars("verdict"), certify(run).dataset.drop_vars("verdict"))
    assert found.level.values.tolist() == LEVELS


def test_what_cannot_be_certified_is_refused(run):
    with pytest.raises(ValueError, match="they change by round"):
        dpc.theory.path_bound(dpc.replay(dpc.Exact(), IID, SWAYING))
    with pytest.raises(ValueError, match="and Corrected on a bounded support"):
        dpc.theory.path_bound(dpc.replay(dpc.Credible(), IID, LEVELS))
    with pytest.raises(ValueError, match=r"delta = 1\.0"):
        certify(run, delta=1.0)
    with pytest.raises(ValueError, match="run is a Summary"):
        certify(dpc.replay(dpc.Exact(), IID, LEVELS, keep="summary"))
    with pytest.raises(ValueError, match="run is a ndarray"):
        certify(np.zeros(3))
    with pytest.raises(ValueError, match="outside jit"):
        jax.jit(lambda t: certify(run._replace(thresholds=t)).passed)(run.thresholds)
    with pytest.raises(ValueError, match="only Exact and Quantized, and Corrected"):
        dpc.theory.path_bound(dpc.replay(dpc.ERM(), IID, LEVELS))


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize(
    "learner",
    [
        dpc.Quantized(20, dpc.priors.Uniform(-1, 1)),
        dpc.Quantized(30, dpc.priors.Uniform(-1e6, 1e6), discount=0.95),
        dpc.Exact(dpc.priors.Uniform(0, 0.1)),
        dpc.Exact(dpc.priors.Uniform(1e5, 1e5 + 10)),
        dpc.Exact(dpc.priors.Histogram([0, 0.5, 0.50001, 1], [1, 1, 1])),
        dpc.Exact(dpc.priors.Beta(0.4, 0.4)),
        dpc.Exact(dpc.priors.Beta(200, 200)),
    ],
)
def test_honest_runs_pass_on_any_support_and_under_any_prior(learner, wide):
    low, high = learner.support
    with jax.enable_x64(wide):
        run = dpc.replay(learner, (low + (high - low) * IID[:200]).clip(low, high), [0.01, 0.5, 0.99])
    # Also where the run is looked at in another precision than it was made in.
    promised = certify(run).dataset.sel(check=["order", "optimality", "regret", "discounted regret"])
    assert not (promised.verdict == "FAIL").any()


def test_iid_scores_within_one_bin_are_covered_and_nothing_is_claimed_where_they_are_not():
    """Scores that count at the centre of their bin are missed for ever where they lie in its upper half."""
    scores = 0.475 + 0.024 * IID  # the upper half of the tenth of twenty bins
    for make in (dpc.Quantized, lambda *given, **named: dpc.Hierarchical(1, *given, **named)):
        grouped = {} if make is dpc.Quantized else {"context": np.zeros(400, int)}
        for rounding in ("up", "nearest"):
            run = dpc.replay(make(bins=20, rounding=rounding), scores, LEVELS, **grouped)
            coverage = dpc.metrics.coverage(run)
            found = certify(run).dataset.sel(check="coverage", drop=True).verdict
            if rounding == "up":
                assert (coverage >= np.array(LEVELS) - 0.05).all()
                assert (found == "pass").all()
            else:
                assert (coverage < 0.2).all()
                assert (found == "no claim").all()
    ends = dpc.replay(dpc.Quantized(20), dpc.streams.alternating(400), LEVELS)
    assert (dpc.metrics.coverage(ends) >= np.array(LEVELS) - 0.05).all()


def test_the_bound_of_a_path_scales_with_the_support():
    scores = 1 - dpc.streams.alternating(400)
    for x64 in (True, False):
        with jax.enable_x64(x64):
            bounds = [
                dpc.theory.path_bound(dpc.replay(dpc.Exact(dpc.priors.Uniform(0, R)), R * scores, [0.5]))[0] / R
                for R in (1.0, 0.1, 0.3, 1.1)
            ]
        assert max(bounds) <= dpc.theory.regret_bound(400, 0.5) * (1 + 1e-6)


def test_a_discount_near_one_does_not_blind_the_certificate():
    with jax.enable_x64(False):
        run = dpc.replay(dpc.Exact(discount=0.9999), np.tile(IID, 5), LEVELS)
        assert certify(run).passed
        assert not certify(run._replace(thresholds=jnp.roll(run.thresholds, -1, axis=0))).passed
        assert not certify(run._replace(learner=dpc.Exact(discount=0.99999))).passed


def test_a_late_drop_in_a_long_discounted_run_is_found():
    with jax.enable_x64(False):
        run = dpc.replay(dpc.Exact(discount=0.9), np.tile(IID, 100), [0.5])
        wrong = certify(run._replace(thresholds=run.thresholds.at[-100:].set(1.0)))
    failed = line(wrong, "discounted regret", 0.5)
    assert failed.verdict == "FAIL"
    assert failed.seen > failed.high


def test_a_round_that_is_all_prior_makes_the_bound_infinite_not_absent():
    schedule = dpc.schedules.Custom(lambda t: jnp.where(t == 5, 1.0, 1 / jnp.sqrt(t)))
    certificate = certify(dpc.replay(dpc.Exact(schedule=schedule), IID[:50], LEVELS))
    assert certificate.passed
    assert np.all(certificate.dataset.high.sel(check="regret") == np.inf)
    assert np.all(certificate.dataset.verdict.sel(check="regret") == "pass")


@pytest.mark.parametrize("distribution", [dist.Normal(0.5, 1.0), dist.Cauchy(0.5, 0.3)])
def test_unbounded_priors_are_certified_at_every_level(distribution):
    run = dpc.replay(dpc.Exact(dpc.priors.from_numpyro(distribution)), IID[:60], [0.0, 0.5, 1.0])
    certificate = certify(run)
    assert certificate.passed
    assert np.isfinite(line(certificate, "regret", 0.5).high)
    assert np.all(certificate.dataset.verdict.sel(check="regret") == "pass")


def test_runs_out_of_vmap_have_levels_and_hyperparameters_of_their_own():
    levels, discounts = jnp.asarray([[0.2, 0.6], [0.3, 0.6]]), jnp.asarray([0.9, 0.95])
    sweep = jax.vmap(lambda level, beta: dpc.replay(dpc.Exact(discount=beta), jnp.asarray(IID), level))
    run = sweep(levels, discounts)
    certificate = certify(run)
    assert certificate.passed
    np.testing.assert_allclose(certificate.dataset.levels, levels)
    alone = certify(dpc.replay(dpc.Exact(discount=0.95), IID, [0.3, 0.6])).dataset
    np.testing.assert_allclose(certificate.dataset.high.isel(batch=1), alone.high, rtol=1e-9)
    assert "#0" in repr(certificate)
    wrong = certify(run._replace(thresholds=run.thresholds.at[1, 7, 0].add(0.1)))
    assert wrong.failures[0].startswith("batch 1, ")
    assert "level 0.3" in wrong.failures[0]
