"""Ends this process when the process that started it ends, even while it computes or is stopped."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # of Linux's prctl


def die_with(parent: int) -> None:
    """Let the kernel kill this process when `parent` ends, or end now if it has ended.

    A child that reads a socket notices its closing only at its next read. Without this call, a
    child that is stopped or in a long computation would live on. On other systems than Linux this
    does nothing, and the child ends when it reads the closed socket. Linux counts the thread that
    started the child as its parent, so start it from the main thread.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the line above
        os._exit(0)
