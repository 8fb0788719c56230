"""Priors P0: distributions of the next score before any score is seen."""

from dpconformal.priors.base import Prior
from dpconformal.priors.composed import Histogram, Mixture, NumPyroPrior, from_numpyro
from dpconformal.priors.parametric import Beta, Exponential, HalfCauchy, HalfNormal, LogNormal, TruncatedNormal, Uniform

__all__ = [
    "Beta",
    "Exponential",
    "HalfCauchy",
    "HalfNormal",
    "Histogram",
    "LogNormal",
    "Mixture",
    "NumPyroPrior",
    "Prior",
    "TruncatedNormal",
    "Uniform",
    "from_numpyro",
]
