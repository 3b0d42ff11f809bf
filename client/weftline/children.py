"""Ends this process when the process that started it ends, even while it computes or is stopped."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # of Linux's prctl


def die_with(parent: int) -> None:
    """Let the kernel kill this process when `parent` ends, or end now if it has ended.

    A child that reads a socket sees its end only when it reads again. A stopped child, or one in a
    long computation, would stay. Elsewhere than on Linux this does nothing, and the socket's end
    must be enough. The thread that started the child counts as its parent, so that must be the
    main thread.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(0)
