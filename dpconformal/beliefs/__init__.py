"""Beliefs: distributions of the next score, which answer every confidence level at once."""

from dpconformal.beliefs.belief import Belief
from dpconformal.beliefs.empirical import ERM, DiscountedERM, NExCP, SplitConformal
from dpconformal.beliefs.exact import Exact
from dpconformal.beliefs.quantized import Quantized
from dpconformal.beliefs.sliding import SlidingERM

__all__ = ["ERM", "Belief", "DiscountedERM", "Exact", "NExCP", "Quantized", "SlidingERM", "SplitConformal"]
