"""A replay that cannot fit says so at once, and what to do instead."""

import time

import jax
import numpy as np
import pytest

import dpconformal as dpc
from dpconformal.engine import machine


def endless(*shape):
    """Scores without end that take no memory: one number, repeated."""
    return np.broadcast_to(0.5, shape)


@pytest.mark.parametrize(
    ("learner", "keep", "words"),
    [
        (dpc.Quantized(100), "all", ["keep='summary'", "state=run.state", "200 levels", "thresholds"]),
        (dpc.OGD([0.9]), "all", ["keep='summary'", "in blocks"]),
        (dpc.Exact(), "summary", ["state of Exact", "Quantized"]),
        (dpc.Exact(), "all", ["state of Exact", "Quantized"]),
        (dpc.ERM(), "summary", ["state of ERM", "Quantized"]),
        (dpc.Corrected(), "summary", ["state of Corrected", "Quantized"]),
    ],
)
@pytest.mark.parametrize("shape", [(10**13,), (1000, 10**10)], ids=["one", "batch"])
def test_terabytes_are_refused_at_once(learner, keep, words, shape):
    start = time.perf_counter()
    with pytest.raises(MemoryError, match=r"are needed, and .* are free") as caught:
        dpc.replay(learner, endless(*shape), np.linspace(0, 1, 200), keep=keep)
    assert time.perf_counter() - start < 5  # a pass over the scores would take hours
    assert isinstance(caught.value, dpc.TooLarge)
    assert isinstance(caught.value, ValueError)
    assert all(word in str(caught.value) for word in words), caught.value


def test_masks_and_levels_by_round_are_refused_too():
    rows = np.broadcast_to(0.5, (10**12, 3))
    with pytest.raises(dpc.TooLarge):
        dpc.replay(dpc.Quantized(10), endless(10**12), rows, mask=np.broadcast_to(True, 10**12))


def test_what_fits_is_replayed_and_what_does_not_is_not(monkeypatch):
    scores, levels = endless(300_000), np.linspace(0.01, 0.99, 250)  # 600 MB
    monkeypatch.setattr(machine, "available", lambda: 5 * 10**8)
    with pytest.raises(dpc.TooLarge, match=r"60[0-9] MB are needed, and 500 MB are free"):
        dpc.replay(dpc.Quantized(10), scores, levels)
    assert dpc.replay(dpc.Quantized(10), scores, levels[:1], keep="summary").rounds == 300_000


def test_where_nothing_is_known_nothing_is_refused(monkeypatch):
    monkeypatch.setattr(machine, "available", lambda: None)
    machine.check_memory(dpc.Exact(), (10**13,), [0.5], np.float64, "all")


def test_a_short_replay_does_not_pay(monkeypatch):
    def asked():
        raise AssertionError

    monkeypatch.setattr(machine, "available", asked)
    learner = dpc.Exact()
    dpc.replay(learner, [0.1, 0.2], [0.5])
    start = time.perf_counter()
    for _ in range(1000):
        machine.check_memory(learner, (1000,), [0.5, 0.9], np.float64, "all")
    assert time.perf_counter() - start < 0.2  # 200 µs each, with types checked at run time; without, it takes 5


def test_inside_jit_nothing_is_asked(monkeypatch):
    monkeypatch.setattr(machine, "available", lambda: 0)
    assert jax.jit(lambda scores: dpc.replay(dpc.Exact(), scores, [0.5]).thresholds)(np.array([0.1])).shape == (1, 1)


def test_control_groups_of_both_versions(tmp_path):
    listing = tmp_path / "cgroup"
    listing.write_text("4:memory:/mine\n3:cpu:/mine\n0::/a/b\n")
    for folder, files in {
        "": {"memory.max": "max", "memory.current": "5"},
        "a": {"memory.max": "1000", "memory.current": "400"},
        "a/b": {"memory.max": "900", "memory.current": "100"},
        "memory": {"memory.limit_in_bytes": "9000", "memory.usage_in_bytes": "1000"},
        "memory/mine": {"memory.limit_in_bytes": "10", "memory.usage_in_bytes": "30"},
    }.items():
        (tmp_path / folder).mkdir(exist_ok=True, parents=True)
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text + "\n")
    assert sorted(machine._control_groups(str(tmp_path), str(listing))) == [0, 600, 800, 8000]
    assert machine._control_groups(str(tmp_path), str(tmp_path / "none")) == []


def test_a_limit_on_the_address_space(monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**50, 2**50))
    assert 0 < machine._address_space() <= 2**50
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert machine._address_space() is None


def test_the_machine_is_asked():
    room = machine.available()
    assert room is None or 0 < room < 2**50
    assert machine._field("/nowhere", "MemAvailable:") is None
    assert [machine.in_units(size) for size in (12, 3400, 2.5e9, 7e15)] == ["12 bytes", "3.4 kB", "2.5 GB", "7,000 TB"]
