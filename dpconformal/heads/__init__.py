"""Prediction heads: other ways to read a threshold off a belief than its quantile."""

from dpconformal.heads.corrected import Corrected
from dpconformal.heads.credible import Credible
from dpconformal.heads.head import Head

__all__ = ["Corrected", "Credible", "Head"]
