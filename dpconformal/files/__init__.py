"""Scores from files, results to files."""

from dpconformal.files.reading import Recorded, copy_to_disk, open_scores, read_scores
from dpconformal.files.working_folder import staging_folder

__all__ = ["Recorded", "copy_to_disk", "open_scores", "read_scores", "staging_folder"]
