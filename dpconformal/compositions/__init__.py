"""Compositions: beliefs that are made of other beliefs."""

from dpconformal.compositions.aggregate import Aggregate, auto
from dpconformal.compositions.heads import Corrected, Credible, Head
from dpconformal.compositions.hierarchical import Hierarchical
from dpconformal.compositions.rearranged import Rearranged
from dpconformal.compositions.recalibrated import Recalibrated

__all__ = ["Aggregate", "Corrected", "Credible", "Head", "Hierarchical", "Rearranged", "Recalibrated", "auto"]
