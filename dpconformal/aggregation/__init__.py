"""Several beliefs in the place of one: mixed so well that none of them would have been much better."""

from dpconformal.aggregation.aggregate import Aggregate
from dpconformal.aggregation.automatic import auto

__all__ = ["Aggregate", "auto"]
