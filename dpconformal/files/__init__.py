"""Scores from files, results to files."""

from dpconformal.files.reading import read_scores
from dpconformal.files.recorded import Recorded
from dpconformal.files.staging import staged

__all__ = ["Recorded", "read_scores", "staged"]
