"""Scores from files, results to files."""

from dpconformal.files.reading import open_scores, read_scores
from dpconformal.files.recorded import Recorded, spool
from dpconformal.files.working_folder import staged

__all__ = ["Recorded", "open_scores", "read_scores", "spool", "staged"]
