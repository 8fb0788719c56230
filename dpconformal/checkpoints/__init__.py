"""Checkpoints: a learner and its state in one file."""

from dpconformal.checkpoints.saving import Checkpoint, load, save

__all__ = ["Checkpoint", "load", "save"]
