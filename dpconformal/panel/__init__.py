"""Panels: many series at once, in memory, larger than memory, or on several machines."""

from dpconformal.panel.long import from_long, to_long
from dpconformal.panel.storing import open_panel, save_panel

__all__ = ["from_long", "open_panel", "save_panel", "to_long"]
