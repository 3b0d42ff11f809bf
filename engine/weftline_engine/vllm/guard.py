"""Runs a command in a process group of its own and ends it all when standard input closes.

`python -m weftline_engine.vllm.guard COMMAND…`: vLLM has children of its own, and no wish to end
with a parent that was killed; this process is what the parent's death reaches.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

GRACE_S = 5.0  # between asking the group to end and ending it


def main() -> None:
    """Run until the command or standard input ends; the command's exit code."""
    child = subprocess.Popen(
        sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True, stdout=sys.stderr
    )
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)  # who started us closes our standard input
    threading.Thread(target=_watch, args=(child.pid,), daemon=True).start()
    code = child.wait()
    _signal(child.pid, signal.SIGKILL)  # what it left behind
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
