"""Groups that learn from one another: a hierarchical Dirichlet belief."""

from dpconformal.groups.hierarchical import Hierarchical

__all__ = ["Hierarchical"]
