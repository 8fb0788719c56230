"""Panels: many series at once, in memory, larger than memory, or on several machines."""

from dpconformal.panel.fitting import fit_belief
from dpconformal.panel.long import from_long, to_long
from dpconformal.panel.replaying import replay_panel

__all__ = ["fit_belief", "from_long", "replay_panel", "to_long"]
