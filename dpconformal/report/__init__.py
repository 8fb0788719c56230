"""A page about a run: one HTML file with a slider over the confidence levels."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpconformal.report.page import report
else:

    def __getattr__(name: str) -> Any:
        """Import the page when it is asked for: this folder is imported with the package."""
        if name == "report":
            from dpconformal.report import page

            return page.report
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["report"]
