"""A page about a run: one HTML file with a slider over the confidence levels."""

from dpconformal.report.page import report

__all__ = ["report"]
