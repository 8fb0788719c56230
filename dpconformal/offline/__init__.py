"""Replays of recorded scores in native loops: pointers that walk, in the place of a scan over a growing state."""
