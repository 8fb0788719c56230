"""Checkpoints: every learner comes back to the last bit; files that are not what they should be are refused."""

import errno
import json
import os
import pathlib
import resource
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from cases import ALL, PRIORS, sequences
from checkpoints.samples import LEVELS, SAMPLES, scores, told

import dpconformal as dpc
from dpconformal import priors, rates, schedules
from dpconformal.checkpoints import container as atomic
from dpconformal.checkpoints.container import pack, unpack
from dpconformal.checkpoints.records import CLASSES
from dpconformal.files import read_scores

STORED = pathlib.Path(__file__).parent
SCORES = np.random.default_rng(3).random(40)


def assert_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_array_equal(a, b)


def saved(path, learner, state=None, **given):
    dpc.save(path, learner, state)
    return dpc.load(path, **given)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, np.float64) for name in ALL if name != "exact_callable"]
    + [(name, np.float32) for name in ("exact", "quantized_discounted", "aci")],
)
def test_every_learner_carries_on_as_if_never_interrupted(name, dtype, tmp_path):
    learner = ALL[name]
    first = dpc.replay(learner, SCORES[:25].astype(dtype), LEVELS)
    again = saved(tmp_path / "a.dpc", learner, first.state)
    assert again.learner == learner
    assert_same(again.learner, learner)
    assert_same(again.state, first.state)
    rest = dpc.replay(again.learner, SCORES[25:].astype(dtype), LEVELS, state=again.state)
    wanted = dpc.replay(learner, SCORES[25:].astype(dtype), LEVELS, state=first.state)
    np.testing.assert_array_equal(rest.thresholds, wanted.thresholds)


HALF_LINES = [priors.HalfNormal(2.0), priors.Exponential(0.1), priors.LogNormal(-1.0, 0.3), priors.HalfCauchy(3.0)]
NUMPYRO = [
    dist.Beta(2.0, 3.0),
    dist.Uniform(0.0, 3.0),
    dist.TruncatedNormal(0.1, 0.3, low=0.0, high=1.0),
    dist.LogNormal(0.0, 1.0),
    dist.Normal(0.0, 2.0),
]


@pytest.mark.parametrize(
    "prior",
    [prior for prior, _ in PRIORS.values()] + HALF_LINES + [priors.from_numpyro(d) for d in NUMPYRO],
    ids=lambda prior: type(getattr(prior, "distribution", prior)).__name__,
)
def test_every_prior(prior, tmp_path):
    learner, state = saved(tmp_path / "a.dpc", dpc.Exact(prior))
    assert state is None
    assert_same(learner, dpc.Exact(prior))
    np.testing.assert_array_equal(learner.prior.quantile(0.3), prior.quantile(0.3))


@pytest.mark.parametrize(
    "schedule",
    [schedules.InverseSqrt(), schedules.Dirichlet(3.5), schedules.Constant(1 / 3), schedules.discounted(0.9)],
)
def test_every_schedule(schedule, tmp_path):
    assert saved(tmp_path / "a.dpc", dpc.Exact(schedule=schedule)).learner.schedule == schedule


def test_every_exported_class_has_a_name_in_files():
    ours = [dpc, dpc.forecasts, priors, schedules, rates]
    found = {value for module in ours for value in vars(module).values() if isinstance(value, type)}
    registered = {kind for kind in found if jax.tree_util.all_leaves([kind]) and hasattr(kind, "__dataclass_fields__")}
    apart = {priors.NumPyroPrior, schedules.Custom, rates.Custom}  # told in ways of their own
    assert registered - apart == set(CLASSES.values())
    assert {card.name for card in dpc.learners()} <= {kind.__name__ for kind in CLASSES.values()}


def test_a_batch_of_states_and_an_empty_one(tmp_path):
    learner = dpc.Quantized(8, discount=0.9)
    run = dpc.replay(learner, np.random.default_rng(0).random((2, 3, 9)), LEVELS)
    assert_same(saved(tmp_path / "a.dpc", learner, run.state).state, run.state)
    assert_same(saved(tmp_path / "a.dpc", learner, learner.init()).state, learner.init())
    none = dpc.replay(learner, np.zeros((0, 9)), LEVELS).state
    assert_same(saved(tmp_path / "a.dpc", learner, none).state, none)


def test_numbers_that_json_would_bend(tmp_path):
    learner = dpc.SplitConformal(-np.inf, np.inf)
    assert saved(tmp_path / "a.dpc", learner).learner == learner
    exact = dpc.Exact(priors.Uniform(-0.0, 1e-90), discount=np.nextafter(1, 0))
    again = saved(tmp_path / "a.dpc", exact).learner
    assert again == exact
    assert np.signbit(again.prior.low)
    swept = dpc.Exact(discount=jnp.array([0.9, 0.99]))
    assert isinstance(saved(tmp_path / "a.dpc", swept).learner.discount, jax.Array)
    assert isinstance(saved(tmp_path / "a.dpc", dpc.OGD([0.5])).learner.levels, np.ndarray)


@pytest.mark.parametrize("name", SAMPLES)
def test_files_of_format_1_go_on_being_read(name):
    learner, state = dpc.load(STORED / "format_1" / f"{name}.dpc")
    assert_same(learner, SAMPLES[name])
    answers = json.loads((STORED / "format_1" / "answers.json").read_text())[name]
    run = dpc.replay(learner, scores(name)[..., ::-1], LEVELS, state=state, context=told(name))
    np.testing.assert_allclose(run.thresholds, answers, atol=1e-12)


def test_there_is_a_stored_file_of_every_learner():
    kinds = {type(learner) for learner in SAMPLES.values()}
    assert kinds == {kind for name, kind in CLASSES.items() if "." not in name}


def test_a_pid_of_before_it_followed_the_authors_is_refused():
    """Its rates were shares of the support, and its integrator was a round ahead: it must not go on in silence."""
    with pytest.raises(ValueError, match=r"PID\.dpc cannot be loaded: it holds a PID of before .* replay the scores"):
        dpc.load(STORED / "format_1" / "PID.dpc")


def test_a_function_of_the_user_is_asked_for_and_known_again(tmp_path):
    path = tmp_path / "a.dpc"
    learner = dpc.Exact(schedule=lambda t: 1 / (1 + jnp.log(t)))
    run = dpc.replay(learner, SCORES, LEVELS)
    dpc.save(path, learner, run.state)
    with pytest.raises(
        ValueError, match=r"a\.dpc cannot be loaded: it was saved with a schedule of your own: pass it as"
    ):
        dpc.load(path)
    with pytest.raises(
        ValueError, match=r"function gives 0\.707107 in round 2, and the one it was saved with gave 0\.59"
    ):
        dpc.load(path, function=lambda t: t**-0.5)
    again = dpc.load(path, function=lambda t: 1 / (1 + jnp.log(t)))
    assert_same(again.state, run.state)
    dpc.save(path, dpc.OGD([0.5], rate=lambda t: 1 / t))
    with pytest.raises(ValueError, match="a rate of your own"):
        dpc.load(path)
    assert float(dpc.load(path, function=lambda t: 1 / t).learner.rate.step(4.0)) == 0.25


class Own:
    """A learner that is none of ours."""

    def init(self):
        return ()

    def quantile(self, state, levels):
        return levels

    def observe(self, state, score):
        return state


class OwnExact(dpc.Exact):
    pass


REFUSED = [
    (Own(), None, "only dpconformal's own learners"),
    (OwnExact(), None, "OwnExact is no class of dpconformal's"),
    (dpc.Exact(), dpc.Quantized(4).init(), "state is a BinnedScores: Exact has a SortedScores"),
    (dpc.Exact(), dpc.Exact().init()._replace(seen=jnp.int32(-1)), "state.seen = -1: a bad score"),
    (dpc.Exact(), dpc.Exact().init()._replace(seen=jnp.int32(3)), "outside the support"),
    (dpc.Quantized(4), dpc.Quantized(5).init(), "state has 5 bins"),
    (dpc.Quantized(4), dpc.Quantized(4).init()._replace(seen=jnp.int32(3)), "counts must add up to state.seen"),
    (dpc.OGD([0.5]), dpc.OGD([0.5, 0.9]).init(), "state.iterate"),
    (dpc.Exact(), 3, "state is a int"),
]


@pytest.mark.parametrize(("learner", "state", "message"), REFUSED, ids=[message[:20] for *_, message in REFUSED])
def test_what_could_not_be_loaded_is_not_saved(learner, state, message, tmp_path):
    with pytest.raises(ValueError, match=r"(?s).*") as error:
        dpc.save(tmp_path / "a.dpc", learner, state)
    assert message in str(error.value)
    assert not list(tmp_path.iterdir())


def test_traced_values_are_not_saved(tmp_path):
    def inside(discount):
        dpc.save(tmp_path / "a.dpc", dpc.Exact(discount=discount))
        return discount

    with pytest.raises(ValueError, match="being traced"):
        jax.jit(inside)(0.9)


# --- Files that are not what they should be


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.dpc"
    learner = dpc.Quantized(8)
    dpc.save(path, learner, dpc.replay(learner, SCORES, LEVELS).state)
    return path


def refused(path, content=None):
    """The message with which a file is refused; it names the file."""
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"(?s).*") as error:
        dpc.load(path)
    assert str(error.value).startswith(str(path))
    return str(error.value)


def test_every_cut_and_every_flipped_byte_is_found(good, tmp_path):
    whole, bad = good.read_bytes(), tmp_path / "bad.dpc"
    for length in range(len(whole)):
        assert "is cut off" in refused(bad, whole[:length]), length
    for place in range(len(whole)):
        content = bytearray(whole)
        content[place] ^= 1 << place % 8
        refused(bad, content)
    assert "is longer than what was written" in refused(bad, whole + b"\0")
    assert "is longer than what was written" in refused(bad, whole + whole)


FOREIGN = {
    "picture.dpc": b"\x89PNG\r\n\x1a\n" + bytes(100),
    "array.dpc": b"\x93NUMPY\x01\x00" + bytes(100),
    "archive.dpc": b"PK\x03\x04" + bytes(100),
    "pickle.dpc": b"cos\nsystem\n(S'touch /tmp/never'\ntR." + bytes(100),
    "table.dpc": b"score\n0.5\n" * 20,
    "short.dpc": b"no",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_file_under_our_name_is_no_checkpoint(name, tmp_path):
    assert "is no checkpoint of dpconformal" in refused(tmp_path / name, FOREIGN[name])


def test_ours_under_a_foreign_name_is_known_by_its_content(good, tmp_path):
    assert_same(dpc.load(good.rename(tmp_path / "renamed.csv")).learner, dpc.Quantized(8))
    with pytest.raises(ValueError, match=r"renamed.csv is no text"):
        read_scores(tmp_path / "renamed.csv")


def sealed(path, header, arrays=(), **prefix):
    """A file whose checksum is right, whatever it says."""
    import hashlib

    content = bytearray(b"".join(bytes(part) for part in pack(header, list(arrays)))[:-32])
    for name, value in prefix.items():
        start, size = {"version": (8, 4), "length": (12, 4)}[name]
        content[start : start + size] = value.to_bytes(size, "little")
    path.write_bytes(bytes(content) + hashlib.sha256(content).digest())
    return path


UNIFORM = {"class": "priors.Uniform", "fields": {"low": 0.0, "high": 1.0}}


def exact(**fields):
    return {
        "class": "Exact",
        "fields": {"prior": UNIFORM, "schedule": None, "discount": None, "capacity": None} | fields,
    }


def deep(levels):
    entry = None
    for _ in range(levels):
        entry = {"tuple": [entry]}
    return entry


HOSTILE = {
    "another kind": ({"kind": "progress"}, "is a checkpoint of a progress, not of a learner"),
    "no kind": ({}, "is a checkpoint of a None"),
    "no learner": ({"learner": None}, "it describes no learner"),
    "a number": ({"learner": 3}, "it describes no learner"),
    "a prior": ({"learner": UNIFORM}, "it describes no learner"),
    "code": (
        {"learner": {"class": "os.system", "fields": {"command": "true"}}},
        "describes nothing that dpconformal has",
    ),
    "builtins": ({"learner": {"class": "builtins.eval", "fields": {}}}, "describes nothing"),
    "a function": ({"learner": exact(schedule={"function": "os.system", "values": []})}, "describes nothing"),
    "a path": ({"learner": exact(prior={"numpy": "/etc/passwd"})}, "describes nothing"),
    "no such array": ({"learner": exact(discount={"numpy": 7})}, "describes nothing"),
    "distribution": (
        {"learner": exact(prior={"distribution": "__builtins__", "parameters": {}})},
        "NumPyro has no distribution '__builtins__'",
    ),
    "parameters": (
        {"learner": exact(prior={"distribution": "Beta", "parameters": {"concentration1": 1.0}})},
        "NumPyro has no distribution 'Beta' with the parameters concentration1",
    ),
    "odd parameters": (
        {"learner": exact(prior={"distribution": "Beta", "parameters": {"concentration1": "a", "concentration0": []}})},
        "describes nothing",
    ),
    "unknown field": ({"learner": exact(colour=1)}, "Exact has no colour"),
    "missing field": ({"learner": {"class": "ACI", "fields": {}}}, "ACI has no levels in this file"),
    "bad number": ({"learner": exact(discount=2.0)}, "Exact.discount = 2.0: must be finite and in (0, 1)"),
    "text": ({"learner": exact(prior="uniform")}, "cannot be loaded"),
    "deep": ({"learner": exact(prior=deep(200))}, "cannot be loaded"),
    "vast capacity": (
        {"learner": exact(capacity=2**50), "state": {}},
        "that keeps every score holds at most",
    ),
    "no state": ({"learner": exact(), "state": {".seen": 0}}, "its state is no list of arrays"),
    "odd state": ({"learner": exact(), "state": {}}, "and that of Exact .seen, .values, .arrivals"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_with_a_right_checksum(name, tmp_path):
    header, message = HOSTILE[name]
    kind = {} if name in ("another kind", "no kind") else {"kind": "learner"}
    assert message in refused(sealed(tmp_path / "hostile.dpc", kind | header))


def test_hostile_arrays_with_a_right_checksum(tmp_path):
    path = tmp_path / "hostile.dpc"
    learner = {"kind": "learner", "learner": exact()}
    state = {"state": {".seen": 0, ".values": 1, ".arrivals": 2}}
    seen, values, arrivals = np.int32(2), np.array([0.1, 0.2, np.inf]), np.array([2, 1, 0], np.int32)
    sealed(path, learner | state, [np.asarray(seen), values, arrivals])
    assert int(dpc.load(path).state.seen) == 2
    for wrong, message in (
        ([np.int32(3), values, arrivals], "outside the support"),
        ([np.int32(1), values, arrivals], "state.values must be ascending"),
        ([np.int32(9), values, arrivals], "state.seen = 9: more than the 3 values"),
        ([np.int32(-1), values, arrivals], "state.seen = -1"),
        ([seen, values[::-1], arrivals], "state.values must be ascending"),
        ([seen, np.array([0.1, 7.0, np.inf]), arrivals], "outside the support"),
        ([seen, values, np.array([1, 1, 0], np.int32)], "state.arrivals must be the rounds"),
        ([seen, values, arrivals.astype(np.float64)], "state.arrivals holds float64"),
        ([seen, values[:2], arrivals], "state.arrivals must have the shape of state.values"),
        ([seen, values[None], arrivals], "does not fit the other parts"),
        ([np.ones((2, 2), np.int32), values, arrivals], "does not fit the other parts"),
    ):
        sealed(path, learner | state, [np.asarray(part) for part in wrong])
        assert message in refused(path)


def test_a_layout_that_lies(tmp_path):
    path, learner = tmp_path / "hostile.dpc", {"kind": "learner", "learner": exact()}
    assert "has format 2, of another dpconformal; this one reads up to 1" in refused(sealed(path, learner, version=2))
    assert "has format 0" in refused(sealed(path, learner, version=0))
    assert "has a header of 4,294,967,295 bytes" in refused(sealed(path, learner, length=2**32 - 1))
    assert "has a header that cannot be read" in refused(sealed(path, learner, length=20))
    for listed, message in (
        ([{"dtype": "<f8", "shape": [2**40, 2**40]}], "larger than the file"),
        ([{"dtype": "<f8", "shape": [-1]}], "an array 0 of unknown kind"),
        ([{"dtype": "|O", "shape": [1]}], "an array 0 of unknown kind"),
        ([{"dtype": ["<f8"], "shape": [1]}], "an array 0 of unknown kind"),
        ([{"dtype": "<f8", "shape": [0] * 9}], "an array 0 of unknown kind"),
        ([7], "an array 0 of unknown kind"),
        ("all", "has no list of arrays"),
        ([], "bytes that belong to nothing"),
    ):
        text = json.dumps(learner | {"arrays": listed}).encode()
        write_raw(path, text, bytes(-(24 + len(text)) % 64) + bytes(8))
        assert message in refused(path)
    write_raw(path, json.dumps({"arrays": [{"dtype": "|b1", "shape": [1]}]}).encode().ljust(104), b"\2")
    assert "neither 0 nor 1" in refused(path)
    for text in (b"[" * 100_000, b'{"a":1,"a":2}', b'{"a":NaN}', b"\xff", b"[]", b'{"a":' + b"9" * 5000 + b"}"):
        assert "has a header that" in refused(write_raw(path, text, b""))


def nested(prior, times):
    """A mixture within a mixture within a mixture."""
    for _ in range(times):
        weights = {"tuple": [0.5, 0.5]}
        prior = {"class": "priors.Mixture", "fields": {"components": {"tuple": [prior, UNIFORM]}, "weights": weights}}
    return prior


def tree(parents):
    return {"class": "Hierarchical", "fields": {"tree": parents}}


def numpyro(name, **parameters):
    return exact(prior={"distribution": name, "parameters": parameters})


GRID_OF_ONE, WIDE = np.array([0.5]), [np.zeros((20_000, 1)), np.ones((1, 20_000))]
EXPERT = [np.asarray(2**20, np.int32), np.zeros(1), np.ones(1, np.int32), *[np.zeros((1, 1))] * 5]
STATE_OF_EXPERTS = (".seen", ".answer", ".births", ".iterate", ".squares", ".gains", ".bets", ".wealth")
# What each took before it was bounded: 12 s and 1.7 GB, 1.4 GB, half a minute, minutes, gigabytes from then on.
AMPLIFIERS = {
    "a number of groups": (tree(10_000_000), [], None, "a file lists the parent of each group"),
    "a chain of parents": (tree({"tuple": list(range(-1, 8999))}), [], None, "their product is at most 4,194,304"),
    "a longer chain": (tree({"tuple": list(range(-1, 149_999))}), [], None, "their product is at most 4,194,304"),
    "nested mixtures": (exact(prior=nested(UNIFORM, 20)), [], None, "nested deeper than the 32 layers"),
    "many learners": (
        {"class": "Aggregate", "fields": {"learners": {"tuple": [{"class": "ERM", "fields": {}}] * 5000}}},
        [],
        None,
        "more than 500 learners",
    ),
    "an array many times": (
        {"class": "Aggregate", "fields": {"learners": {"tuple": [{"numpy": 0}] * 50_000}}},
        [np.zeros(2**17)],
        None,
        "array 0 is in two places",
    ),
    "a row and a column": (
        exact(prior={"class": "priors.Uniform", "fields": {"low": {"jax": 0}, "high": {"jax": 1}}}),
        WIDE,
        None,
        "which make 400,000,000 numbers",
    ),
    "a distribution's row and column": (
        numpyro("Beta", concentration1={"jax": 0}, concentration0={"jax": 1}),
        WIDE,
        None,
        "no distribution of one score",
    ),
    "a distribution's size": (numpyro("LKJ", dimension=20_000, concentration=1.0, sample_method="onion"), [], None, ""),
    "room for experts": (
        {"class": "SAOCP", "fields": {"levels": {"numpy": 0}, "lifetime": 2**20}},
        [GRID_OF_ONE, *EXPERT],
        {name: k for k, name in enumerate(STATE_OF_EXPERTS, 1)},
        "state.births has 1 slots",
    ),
    "an array of nobody": (exact(), [np.zeros(5)], None, "arrays that belong to nothing"),
}


@pytest.mark.parametrize("name", AMPLIFIERS)
def test_a_header_takes_no_more_than_its_file_warrants(name, tmp_path):
    learner, arrays, state, message = AMPLIFIERS[name]
    path = sealed(tmp_path / "hostile.dpc", {"kind": "learner", "learner": learner, "state": state}, arrays)
    start, peak = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert message in refused(path)
    assert time.process_time() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 2**16 + path.stat().st_size // 16  # kilobytes


def test_what_is_too_much_for_a_file_is_not_saved(tmp_path):
    chain = dpc.Hierarchical([-1, *range(2100)])
    for learner, message in (
        (chain, "Hierarchical.tree has 2,101 nodes"),
        (dpc.Aggregate([dpc.Exact()] * 260), "more than 500 learners"),
    ):
        with pytest.raises(ValueError, match=message):
            dpc.save(tmp_path / "a.dpc", learner)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [name for name in SAMPLES if name != "PID"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e308])
def test_a_state_holds_no_number_that_its_learner_could_not_hold(name, bad, tmp_path):
    """Each loaded before, and thresholds were NaN or 1e308."""
    header, arrays = unpack(STORED / "format_1" / f"{name}.dpc")
    for field, k in header["state"].items():
        # A score on a half-line and what an expert has bet have no limit.
        huge = bad == 1e308 and ((name.startswith("Exact_half") and field == ".values") or field == ".bets")
        if arrays[k].dtype.kind != "f" or huge:
            continue
        bent = [array.copy() for array in arrays]
        # The last entry of an expert's is of one that was just born; those of the dead are nobody's concern.
        place = int(np.argmax(arrays[header["state"][".births"]])) if name == "SAOCP" and field != ".answer" else 0
        bent[k].reshape(-1)[place] = bad
        message = refused(sealed(tmp_path / "hostile.dpc", header, bent))
        assert f"state.{field.rpartition('.')[2]}" in message or "state holds scores" in message


@pytest.mark.parametrize("name", [name for name in ALL if name != "exact_callable"])
def test_states_of_extreme_runs_are_saved_and_loaded(name, tmp_path):
    """Would find a bound of a state's numbers that a replay of the package oversteps."""
    for sequence in (*sequences(25).values(), np.zeros(0)):
        state = dpc.replay(ALL[name], sequence, LEVELS).state
        assert_same(saved(tmp_path / "a.dpc", ALL[name], state).state, state)


@pytest.mark.parametrize("prior", HALF_LINES, ids=lambda prior: type(prior).__name__)
def test_huge_scores_of_half_lines_are_saved_and_loaded(prior, tmp_path):
    state = dpc.replay(dpc.Exact(prior), SCORES[:25] * 1e300, LEVELS).state
    assert_same(saved(tmp_path / "a.dpc", dpc.Exact(prior), state).state, state)


def write_raw(path, text, rest):
    import hashlib
    import struct

    content = struct.pack("<8sIIQ", b"\x89DPC\r\n\x1a\n", 1, len(text), 24 + len(text) + len(rest) + 32) + text + rest
    path.write_bytes(content + hashlib.sha256(content).digest())
    return path


def test_only_regular_files_are_read(tmp_path):
    assert "is no regular file" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "is no regular file" in refused(tmp_path / "pipe")  # at once, although nobody writes to it
    assert "is no regular file" in refused(pathlib.Path("/dev/zero"))
    assert "does not exist" in refused(tmp_path / "nowhere")


# --- Precision


def in_32_bits(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_without_64_bits_numbers_are_kept_or_refused(tmp_path):
    learner = dpc.Exact()
    dpc.save(tmp_path / "fine.dpc", learner, dpc.replay(learner, [0.5, 0.25, 0.125], [0.5]).state)
    dpc.save(tmp_path / "not.dpc", learner, dpc.replay(learner, [0.5, 0.1], [0.5]).state)
    dpc.save(tmp_path / "grid.dpc", dpc.OGD([0.1]))
    code = f"""
import numpy as np, dpconformal as dpc
learner, state = dpc.load({str(tmp_path / "fine.dpc")!r})
print(state.values.dtype, np.asarray(state.values[:3]).tolist())
print(dpc.load({str(tmp_path / "grid.dpc")!r}).learner.levels)
try:
    dpc.load({str(tmp_path / "not.dpc")!r})
except ValueError as error:
    print(error)
narrow = dpc.replay(learner, np.float32([0.1, 0.2]), [0.5]).state
dpc.save({str(tmp_path / "narrow.dpc")!r}, learner, narrow)
"""
    fine, grid, message = in_32_bits(code).splitlines()
    assert fine == "float32 [0.125, 0.25, 0.5]"
    assert grid == "[0.1]"
    assert "not.dpc cannot be loaded: state.values[0] = np.float64(0.1) does not fit float32" in message
    assert "jax_enable_x64" in message
    values = dpc.load(tmp_path / "narrow.dpc").state.values  # and with 64 bits a narrow state stays as it is
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values[:2], np.float32([0.1, 0.2]))


# --- Writing


def test_a_refusing_disk_leaves_the_old_file_and_no_litter(good, tmp_path, monkeypatch):
    before = good.read_bytes()

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for unnamed in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            if not unnamed:
                patch.delattr(os, "O_TMPFILE", raising=False)
            with pytest.raises(OSError, match=r"No space left on device.*good\.dpc"):
                dpc.save(good, dpc.Exact())
        assert good.read_bytes() == before
        assert [path.name for path in tmp_path.iterdir()] == ["good.dpc"]


def test_without_unnamed_files_or_proc_a_hidden_name_serves(good, tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    dpc.save(good, dpc.ERM())
    assert dpc.load(good).learner == dpc.ERM()
    monkeypatch.undo()

    def no_proc(*given, **named):
        raise FileNotFoundError

    monkeypatch.setattr(os, "link", no_proc)
    dpc.save(good, dpc.SplitConformal())
    assert dpc.load(good).learner == dpc.SplitConformal()
    assert [path.name for path in tmp_path.iterdir()] == ["good.dpc"]


def test_what_a_killed_process_left_is_in_nobodys_way(good, tmp_path):
    (tmp_path / ".good.dpc.new").write_bytes(b"left")
    dpc.save(good, dpc.ERM())
    assert dpc.load(good).learner == dpc.ERM()
    assert [path.name for path in tmp_path.iterdir()] == ["good.dpc"]


def test_a_link_stays_a_link_and_permissions_are_the_usual(good, tmp_path):
    link = tmp_path / "link.dpc"
    link.symlink_to(good)
    dpc.save(link, dpc.ERM())
    assert link.is_symlink()
    assert dpc.load(good).learner == dpc.ERM()
    (tmp_path / "usual").touch()
    assert good.stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_two_writers_of_one_file(tmp_path):
    code = f"""
import sys
from dpconformal.checkpoints.container import write_whole
for k in range(200):
    write_whole({str(tmp_path / "shared")!r}, [sys.argv[1].encode() * 1000])
"""
    writers = [subprocess.Popen([sys.executable, "-c", code, name]) for name in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert (tmp_path / "shared").read_bytes() in (b"a" * 1000, b"b" * 1000)
    assert [path.name for path in tmp_path.iterdir()] == ["shared"]


def test_paths_that_make_no_sense(tmp_path):
    with pytest.raises(ValueError, match="is a folder: name a file in it"):
        dpc.save(tmp_path, dpc.ERM())
    with pytest.raises(ValueError, match=r"there is no folder .*missing; make it first"):
        dpc.save(tmp_path / "missing" / "a.dpc", dpc.ERM())
    with pytest.raises(OSError, match="name too long"):
        atomic.write_whole(tmp_path / ("a" * 300), [b""])


def test_arrays_that_no_file_can_hold(tmp_path):
    with pytest.raises(ValueError, match="dtype complex128 cannot be saved"):
        pack({}, [np.zeros(1, complex)])
    with pytest.raises(ValueError, match="1,048,576 is the limit"):
        pack({"a": "b" * 2**20}, [])
    atomic.write_whole(tmp_path / "a", pack({"a": 1}, [np.arange(3, dtype=">i4"), np.array([True])]))
    header, (whole, truth) = unpack(tmp_path / "a")
    assert header == {"a": 1}
    np.testing.assert_array_equal(whole, [0, 1, 2])
    assert truth.tolist() == [True]


def test_nothing_in_the_package_unpickles():
    import re

    for path in pathlib.Path(dpc.__file__).parent.rglob("*.py"):
        text = path.read_text()
        assert not re.search(r"\bimport (pickle|dill|cloudpickle|joblib|shelve|marshal)|allow_pickle=True", text), path
