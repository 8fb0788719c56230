"""Panels: many series at once, in memory, larger than memory, or on several machines."""

from dpconformal.panel.replaying import replay_panel

__all__ = ["replay_panel"]
