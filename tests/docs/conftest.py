"""What the tests of the documents share."""

import pathlib

import pytest


@pytest.fixture(scope="session")
def prices():
    """
    Daily prices of AMD: the one file from outside the checkout that a test reads.

    They are not ours to publish. Tests that ask for them are skipped where there is no `shared/data/AMD.csv` beside the
    checkout.
    """
    path = pathlib.Path(__file__).parents[3] / "shared" / "data" / "AMD.csv"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path
