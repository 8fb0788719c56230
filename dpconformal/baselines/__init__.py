"""Methods to compare with: one copy for each level of their own grid, which has the levels that they answer."""

from dpconformal.baselines.aci import ACI, AgACI, DtACI
from dpconformal.baselines.mvp import MVP, MultiMVP
from dpconformal.baselines.ogd import OGD, SFOGD, MultiOGD
from dpconformal.baselines.pid import PID
from dpconformal.baselines.saocp import SAOCP

__all__ = ["ACI", "MVP", "OGD", "PID", "SAOCP", "SFOGD", "AgACI", "DtACI", "MultiMVP", "MultiOGD"]
