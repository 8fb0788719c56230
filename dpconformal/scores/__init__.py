"""Nonconformity scores, the sets they invert to, and transforms that bring scores into a known range."""

from dpconformal.scores.base import Score
from dpconformal.scores.classification import APS, LAC, RAPS, SAPS, Margin, TopK
from dpconformal.scores.regression import (
    CQR,
    Absolute,
    Ball,
    Ellipsoid,
    EllipsoidRegion,
    Interval,
    Norm,
    Normalized,
    Signed,
)
from dpconformal.scores.transforms import Log, Rank, Ratio, Transform, Transformed

__all__ = [
    "APS",
    "CQR",
    "LAC",
    "RAPS",
    "SAPS",
    "Absolute",
    "Ball",
    "Ellipsoid",
    "EllipsoidRegion",
    "Interval",
    "Log",
    "Margin",
    "Norm",
    "Normalized",
    "Rank",
    "Ratio",
    "Score",
    "Signed",
    "TopK",
    "Transform",
    "Transformed",
]
