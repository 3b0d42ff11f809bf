"""Runs a command in its own process group, and ends the whole group when standard input closes.

`python -m weftline_engine.remote.process_group COMMAND…`: vLLM and its children do not end when
their parent is killed. The parent's death closes this program's standard input, and this program
ends them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

GRACE_S = 5.0  # seconds between SIGTERM and SIGKILL


def main() -> None:
    """Run until the command or standard input ends. Exit with the command's exit code."""
    child = subprocess.Popen(
        sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True, stdout=sys.stderr
    )
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)  # only the end of standard input counts
    threading.Thread(target=_watch, args=(child.pid,), daemon=True).start()
    code = child.wait()
    _signal(child.pid, signal.SIGKILL)  # the command's children that still run
    sys.exit(code if code >= 0 else 128 - code)


def _watch(group: int) -> None:
    while os.read(0, 4096):
        pass
    _signal(group, signal.SIGTERM)
    time.sleep(GRACE_S)
    _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    main()
