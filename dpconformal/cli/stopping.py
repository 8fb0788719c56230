"""Ctrl-C: an end at once, for whatever is saved as it goes may be killed at any moment."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from rich.control import Control
from rich.segment import ControlType

from dpconformal.tables import Terminal


@dataclass(frozen=True)
class _End:
    """What Ctrl-C does."""

    last_words: str

    def __call__(self, *_: object) -> None:
        console = Terminal(stderr=True)
        console.show_cursor()  # a progress bar has hidden it, and left its line unfinished
        if console.is_terminal:
            console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
        console.print(self.last_words, highlight=False, markup=False, soft_wrap=True)
        sys.stdout.flush()
        os._exit(130)


@contextlib.contextmanager
def stopped_at_once(last_words: str) -> Iterator[None]:
    """
    End the process on Ctrl-C, with code 130.

    Notes
    -----
    An exception would have to find its way through whatever runs. Raised in a callback of the garbage collector, as JAX
    has one, it is lost; and an interpreter that ends while compiled programs run may crash.
    """
    before, ours = signal.getsignal(signal.SIGINT), threading.current_thread() is threading.main_thread()
    if not ours or not (before is signal.default_int_handler or isinstance(before, _End)):
        yield  # somebody else listens, or is not to be disturbed, as in the background
        return
    signal.signal(signal.SIGINT, _End(last_words))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
