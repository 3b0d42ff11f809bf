"""The frames of all threads, read without a garbage collection in between.

`sys._current_frames` holds the interpreter's lock of thread states while it makes its dict. In
Python 3.11.0 to 3.11.7 and in 3.12.0 that may start a garbage collection. A finalizer that needs
this lock then waits for itself, and the process stands still.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from threading import Lock
from types import FrameType

_LOCK = Lock()  # two readers must not enable the collector for each other
os.register_at_fork(
    before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
)


def current_frames() -> Mapping[int, FrameType]:
    """The innermost frame of each thread, by the thread's id."""
    with _LOCK:
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if collects:
                gc.enable()
