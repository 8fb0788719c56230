"""Priors P0: what is believed of the next score before any score is seen."""

from dpconformal.priors.adapter import NumPyroPrior, from_numpyro
from dpconformal.priors.base import Prior
from dpconformal.priors.half_line import Exponential, HalfCauchy, HalfNormal, LogNormal
from dpconformal.priors.interval import Beta, TruncatedNormal, Uniform
from dpconformal.priors.mixture import Histogram, Mixture

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
