"""What a child process does first: it ends with its parent, and keeps only what it was given."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

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


def keep_only(*descriptors: int) -> None:
    """Close all other descriptors but standard input, output and error.

    uvloop starts a child with every descriptor that can be inherited, and it leaves copies of the
    parent's standard error among them.
    """
    for name in os.listdir("/dev/fd"):
        descriptor = int(name)
        if descriptor > 2 and descriptor not in descriptors:
            with suppress(OSError):  # the one that listed the folder
                os.close(descriptor)
