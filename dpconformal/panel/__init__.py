"""Panels: many series at once, in memory, larger than memory, or on several machines."""

from dpconformal.panel.fitting import fit_belief
from dpconformal.panel.long import from_long, to_long
from dpconformal.panel.opening import open_panel
from dpconformal.panel.replaying import replay_panel
from dpconformal.panel.storing import save_panel

__all__ = ["fit_belief", "from_long", "open_panel", "replay_panel", "save_panel", "to_long"]
