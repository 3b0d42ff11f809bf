"""Frames of threads are read while finalizers wait to run, and no finalizer runs in between."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

from weftline.adapters.frames import current_frames

# With a collection at every new object, a finalizer that reads frames itself needs the lock that
# the reader holds. With `sys._current_frames` alone, Python 3.11.7 stands still here.
PROGRAM = """
import gc, sys
from weftline.adapters.frames import current_frames

class Cycle:
    def __init__(self): self.me = self
    def __del__(self): sys._current_frames()

def read():
    return len(current_frames())

gc.set_threshold(1)
for _ in range(300):
    Cycle()
    read()
print(gc.isenabled())
"""


def test_a_finalizer_that_reads_frames_does_not_stop_the_process() -> None:
    """The process ends, and its collector is as it was."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_the_collector_stays_as_the_program_has_it() -> None:
    """A program that has switched its collector off finds it off."""
    assert threading.get_ident() in current_frames()
    was_on = gc.isenabled()
    gc.disable()
    try:
        current_frames()
        assert not gc.isenabled()
    finally:
        if was_on:
            gc.enable()
