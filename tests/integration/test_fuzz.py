"""A short, seeded run of the fuzzers; docs/reliability.md tells of the long one."""

import random

import pytest
from jaxtyping import TypeCheckError
from reliability import fuzz_calls, fuzz_files, fuzz_panels
from reliability.fuzz import CLEAR, fuzz

TARGETS = fuzz_files.TARGETS | fuzz_calls.TARGETS | fuzz_panels.TARGETS
FEW = {
    "replay": 25,
    "observe and merge": 25,
    "priors": 60,
    "checkpoint, sealed": 60,
    "checkpoint, state": 150,
    "checkpoint, header": 100,
    "zarr chunks": 150,
    "zarr metadata": 150,
    "netcdf": 40,
}  # what compiles a lot, opens stores, or is long


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_crashes_and_nothing_is_silently_wrong(name):
    count = FEW.get(name, 400)
    # Here annotations are checked, too, and found wrong before the package can say so in its own words.
    refused, _ = fuzz(TARGETS[name], random.Random(f"short {name}"), count, (*CLEAR, TypeCheckError))
    if name == "jit":
        assert refused == 0  # there is nobody to refuse anything
    else:
        assert 0 < refused < count  # inputs of both kinds
