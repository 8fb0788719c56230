"""Beliefs: distributions of the next score, which answer every confidence level at once."""

from dpconformal.beliefs.belief import Belief
from dpconformal.beliefs.empirical import ERM, SplitConformal
from dpconformal.beliefs.exact import Exact
from dpconformal.beliefs.quantized import Quantized

__all__ = ["ERM", "Belief", "Exact", "Quantized", "SplitConformal"]
