"""A batch over several devices. Run by test_devices.py, in a process that has eight of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import dpconformal as dpc
from dpconformal.engine import scan
from dpconformal.rounds import Rounds

LEVELS = [0.1, 0.5, 0.9]
SCORES = np.random.default_rng(3).beta(2, 5, (16, 12))
LEARNERS = {
    "ogd": dpc.OGD(LEVELS),
    "exact": dpc.Exact(),
    "quantized": dpc.Quantized(bins=8, discount=0.9),
    "aci": dpc.ACI(LEVELS),
    "sfogd": dpc.SFOGD(LEVELS),
    "pid": dpc.PID(LEVELS, scorecast=True),
    "mvp": dpc.MVP(LEVELS, groups=2),
}
SHAPES = [(13,), (16,), (2, 8), (3,), (5, 2)]


def batch(*shape, rounds=slice(None)):
    return SCORES[: np.prod(shape), rounds].reshape((*shape, -1))


def told(name, shape):
    """Make a context of its own for every sequence, for the learners that take one."""
    rng = np.random.default_rng(5)
    if name == "pid":
        return 0.1 * rng.random((*shape, 12))
    return rng.random((*shape, 12, 2)) < 0.7 if name == "mvp" else None


def devices_of(array):
    """List who holds a part of an array that nobody else holds."""
    return {shard.device.id for shard in array.addressable_shards if shard.replica_id == 0}


def assert_equal(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert np.asarray(one).dtype == np.asarray(other).dtype
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


@pytest.fixture(autouse=True)
def _eight():
    assert len(jax.local_devices()) == 8


@pytest.mark.parametrize("shape", SHAPES[:4])
@pytest.mark.parametrize("name", LEARNERS)
def test_a_batch_is_its_sequences_each_alone(name, shape):
    learner, context = LEARNERS[name], told(name, shape)
    run = dpc.replay(learner, batch(*shape), LEVELS, method="scan", context=context)
    assert len(devices_of(run.thresholds)) == {(16,): 8, (2, 8): 8, (3,): 3}.get(shape, 1)
    for index in np.ndindex(*shape):
        own = None if context is None else context[index]
        alone = dpc.replay(learner, batch(*shape)[index], LEVELS, method="scan", context=own)
        taken = run.sequence(*index)
        assert len(taken.thresholds.devices()) == 1 == len(alone.thresholds.devices())
        assert_equal((taken.thresholds, taken.scores, taken.state), (alone.thresholds, alone.scores, alone.state))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_device_has_its_own_part(shape, monkeypatch):
    seen, collected = [], scan.collect
    monkeypatch.setattr(scan, "collect", lambda layout, tree: seen.append(tree) or collected(layout, tree))
    dpc.replay(LEARNERS["ogd"], batch(*shape), LEVELS)
    thresholds, state = seen[0]
    parts = [devices_of(leaf) for leaf in jax.tree.leaves((thresholds, state))]
    assert all(part == set(range(min(np.prod(shape), 8))) for part in parts)
    assert {shard.data.size for shard in thresholds.addressable_shards} == {thresholds.size // len(parts[0])}


def test_devices_do_not_talk():
    layout = scan.layout_of(SCORES)
    learner = dpc.Exact(dpc.priors.Beta(2, 5))  # which inverts its prior in a loop
    state = scan.copy_to_rows(layout, learner.init(12, SCORES.dtype))
    whole = scan.replicate(layout, (learner, jnp.array(LEVELS), jnp.asarray(12, jnp.int32)))
    own = scan.lay_out(layout, Rounds(SCORES, None))
    text = scan._scan_apart.lower(scan.thresholds, "all", layout.mesh, whole, state, own).compile().as_text()
    assert "while" in text
    assert not [word for word in ("all-reduce", "all-gather", "collective", "all-to-all") if word in text]


@pytest.mark.parametrize("shape", [(16,), (13,)])
def test_totals_and_masks(shape):
    scores, mask = batch(*shape), np.random.default_rng(9).random((*shape, 12)) < 0.3
    for keep in ("all", "summary"):
        given = {"keep": keep, "mask": mask}
        run = dpc.replay(LEARNERS["ogd"], np.where(mask, np.nan, scores), LEVELS, **given)
        with jax.default_device(jax.local_devices()[0]):
            alone = dpc.replay(LEARNERS["ogd"], np.where(mask, np.nan, scores), LEVELS, **given)
        assert_equal(run._replace(learner=None), alone._replace(learner=None))


@pytest.mark.parametrize("shape", [(13,), (16,)])
@pytest.mark.parametrize("name", ["ogd", "mvp"])
def test_scores_that_become_known_late(name, shape):
    learner, context, delay = LEARNERS[name], told(name, shape), np.arange(shape[0]) % 5
    placed = NamedSharding(Mesh(np.array(jax.local_devices()[:2]), ("two",)), PartitionSpec())
    for scores in (batch(*shape), jax.device_put(batch(*shape), placed)):
        for keep in ("all", "summary"):
            run = dpc.replay(learner, scores, LEVELS, keep=keep, context=context, delay=delay)
            with jax.default_device(jax.local_devices()[0]):
                alone = dpc.replay(learner, batch(*shape), LEVELS, keep=keep, context=context, delay=delay)
            assert_equal(run._replace(learner=None), alone._replace(learner=None))
    again = dpc.replay(learner, batch(*shape), LEVELS, state=run.state, context=context, delay=delay)
    one = dpc.replay(learner, SCORES[3], LEVELS, context=None if context is None else context[3], delay=3)
    assert_equal(dpc.replay(learner, batch(*shape), LEVELS, context=context, delay=delay).thresholds[3], one.thresholds)
    assert again.thresholds.shape == (*shape, 12, 3)


@pytest.mark.parametrize("shape", [(13,), (2, 8)])
@pytest.mark.parametrize("name", ["ogd", "exact"])
def test_a_run_carries_on(name, shape):
    learner = LEARNERS[name]
    whole = dpc.replay(learner, batch(*shape), LEVELS, method="scan")
    first = dpc.replay(learner, batch(*shape, rounds=slice(6)), LEVELS, method="scan")
    rest = batch(*shape, rounds=slice(6, None))
    second = dpc.replay(learner, rest, LEVELS, state=first.state, method="scan")
    assert_equal(second.thresholds, whole.thresholds[..., 6:, :])
    assert_equal(second.state, whole.state)
    last = tuple(n - 1 for n in shape)  # out of the batch, by our way and by the user's
    for state in (first.sequence(*last).state, jax.tree.map(lambda leaf: leaf[last], first.state)):
        alone = dpc.replay(learner, rest[last], LEVELS, state=state, method="scan")
        assert_equal(alone.thresholds, whole.thresholds[(*last, slice(6, None))])
        assert len(alone.thresholds.devices()) == 1


def test_batches_of_one_padded_size_share_a_program():
    dpc.replay(LEARNERS["ogd"], batch(13), LEVELS)
    before = scan._scan_apart._cache_size()
    for size in (9, 11, 16):
        run = dpc.replay(LEARNERS["ogd"], batch(size), LEVELS)
        dpc.replay(LEARNERS["ogd"], batch(size), LEVELS, state=run.state)
    assert scan._scan_apart._cache_size() == before


def test_inside_jit_vmap_and_grad():
    def mean(scores, rate):
        return dpc.replay(dpc.OGD(LEVELS, rate=rate), scores, LEVELS).thresholds

    scores = batch(13)
    wanted = mean(scores, 0.1)
    assert_equal(jax.jit(mean)(scores, 0.1), wanted)
    assert_equal(jax.vmap(mean, in_axes=(0, None))(scores, 0.1), wanted)
    assert_equal(jax.vmap(mean, in_axes=(None, 0))(scores, jnp.array([0.1, 0.2]))[0], wanted)
    slope = jax.grad(lambda rate: mean(scores, rate).sum())(0.1)
    np.testing.assert_allclose(slope, (mean(scores, 0.1 + 1e-6) - mean(scores, 0.1 - 1e-6)).sum() / 2e-6, rtol=1e-6)


def test_scores_stay_where_the_user_has_put_them():
    all_devices, free = jax.local_devices(), dpc.replay(LEARNERS["ogd"], SCORES, LEVELS)
    pair = NamedSharding(Mesh(np.array(all_devices[2:4]), "x"), PartitionSpec("x"))
    for count, place, where in ((16, pair, {2, 3}), (13, all_devices[5], {5})):
        run = dpc.replay(LEARNERS["ogd"], jax.device_put(batch(count), place), LEVELS)
        assert all(devices_of(leaf) == where for leaf in (run.thresholds, run.scores, *jax.tree.leaves(run.state)))
        assert_equal(run.thresholds, free.thresholds[:count])
        # What was elsewhere comes along: a state from all devices.
        state = jax.tree.map(lambda leaf, count=count: leaf[:count], free.state)
        again = dpc.replay(LEARNERS["ogd"], jax.device_put(batch(count), place), LEVELS, state=state, keep="summary")
        assert all(devices_of(leaf) == where for leaf in jax.tree.leaves(again.state))
    one = dpc.replay(LEARNERS["ogd"], jax.device_put(SCORES[0], all_devices[6]), LEVELS)
    assert devices_of(one.thresholds) == {6}
    uneven = dpc.replay(LEARNERS["ogd"], jax.device_put(batch(13), NamedSharding(pair.mesh, PartitionSpec())), LEVELS)
    assert devices_of(uneven.thresholds) == {2}
    with jax.default_device(all_devices[4]):
        assert devices_of(dpc.replay(LEARNERS["ogd"], SCORES, LEVELS).thresholds) == {4}
    with jax.set_mesh(Mesh(np.array(all_devices[:4]), "x")):
        assert_equal(dpc.replay(LEARNERS["ogd"], SCORES, LEVELS).thresholds, free.thresholds)


@pytest.mark.parametrize("keep", ["all", "summary"])
def test_the_users_array_is_not_looked_at_afterwards(keep):
    size = 16 * 6000
    memory = np.empty(size + 8)  # some of it begins where XLA takes it as it is
    start = -memory.ctypes.data % 64 // 8
    scores = memory[start : start + size].reshape(16, -1)
    given = np.tile(SCORES, (1, 500))
    wanted = dpc.replay(LEARNERS["ogd"], given, LEVELS, keep=keep)
    for _ in range(5):
        scores[:] = given
        run = dpc.replay(LEARNERS["ogd"], scores, LEVELS, keep=keep)
        scores[:] = 0.5
        jax.tree.map(np.testing.assert_array_equal, run._replace(learner=None), wanted._replace(learner=None))


@pytest.mark.parametrize("count", [16, 13])
def test_whatever_is_done_with_a_run(count, tmp_path):
    run = dpc.replay(dpc.Exact(), batch(count), LEVELS, method="scan")
    native = dpc.replay(dpc.Exact(), batch(count), LEVELS)  # the host's loops
    assert_equal(run.thresholds, native.thresholds)
    crossed = [
        dpc.replay(dpc.Exact(), batch(count), LEVELS, state=state, method=method)
        for state, method in ((run.state, "auto"), (native.state, "scan"))
    ]
    assert_equal(crossed[0].thresholds, crossed[1].thresholds)
    for measure in (dpc.metrics.summary, dpc.metrics.pit):
        one, other = measure(run), measure(native)
        for key in one.data_vars if hasattr(one, "data_vars") else [...]:
            np.testing.assert_allclose(one[key], other[key], atol=1e-12)
    assert repr(dpc.theory.certify(run)) == repr(dpc.theory.certify(native))
    sequence = run.sequence(count - 1)
    live = dpc.Online(dpc.Exact(), dpc.scores.Absolute(), state=(sequence.state,))
    live.update(0.5, 0.7)
    dpc.save(tmp_path / "state", dpc.Exact(), sequence.state)
    assert_equal(dpc.load(tmp_path / "state").state, sequence.state)
