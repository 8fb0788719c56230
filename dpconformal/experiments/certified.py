"""Each experiment certifies its own runs of ours, and says so in its data."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dpconformal.replay import Replay
from dpconformal.theory import certify

if TYPE_CHECKING:
    import xarray as xr


def certified(data: "xr.Dataset", runs: Mapping[str, Replay]) -> "xr.Dataset":
    """
    Certify runs and note the outcome in the attributes of an experiment's data.

    Returns: The data, with ``certificate`` (text) and ``certified`` (1 if all lines of all runs pass) in its
    attributes.
    """
    certificates = {name: certify(run) for name, run in runs.items()}
    text = "\n\n".join(f"{name}\n{certificate}" for name, certificate in certificates.items())
    passed = int(all(certificate.passed for certificate in certificates.values()))
    return data.assign_attrs(certificate=text, certified=passed)
