"""Predictive distributions of the next score as learners: bases to recalibrate."""

from dpconformal.forecasts.autoregression import AutoRegression
from dpconformal.forecasts.given import Given
from dpconformal.forecasts.level import LocalLevel, Seasonal

__all__ = ["AutoRegression", "Given", "LocalLevel", "Seasonal"]
