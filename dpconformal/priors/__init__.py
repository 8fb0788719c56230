"""Priors P0: what is believed of the next score before any score is seen."""

from dpconformal.priors.adapter import NumPyroPrior, from_numpyro
from dpconformal.priors.base import Prior
from dpconformal.priors.beta import Beta
from dpconformal.priors.half_line import Exponential, HalfCauchy, HalfNormal, LogNormal
from dpconformal.priors.histogram import Histogram
from dpconformal.priors.mixture import Mixture
from dpconformal.priors.truncated_normal import TruncatedNormal
from dpconformal.priors.uniform import Uniform

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
