"""What a prior is."""

from typing import Protocol, runtime_checkable

from jaxtyping import Array

from dpconformal.validation import Numbers, Scalar


@runtime_checkable
class Prior(Protocol):
    """
    A distribution P0 on an interval, with a density that is positive inside it.

    ``quantile(cdf(x))`` gives x back as closely as the floating-point value ``cdf(x)`` determines it:
    where the density is p0, half a unit in the last place of the cdf is worth eps/(2 p0) in x.

    A class attribute ``closed_form = True`` says that quantiles are cheap. Without it a replay asks for no more of
    them than it must.
    """

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the interval."""
        ...

    def cdf(self, x: Numbers) -> Array:
        """P0(X ≤ x), for any real x."""
        ...

    def quantile(self, p: Numbers) -> Array:
        """Smallest x of the support with cdf(x) ≥ p, for p in [0, 1]."""
        ...

    def density(self, x: Numbers) -> Array:
        """Density at x; 0 outside the support."""
        ...
