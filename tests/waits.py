"""How tests wait for what happens after an answer: on another thread, or in another process.

A test fails if it does not happen. The limit is no measure of speed: what fails never happens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

WAIT_S = 60.0
PAUSE_S = 0.01


def wait_until(holds: Callable[[], object], within_s: float = WAIT_S) -> None:
    """Wait until `holds`, which is asked again and again."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"it did not happen within {within_s:g} s"
        time.sleep(PAUSE_S)


async def until(holds: Callable[[], object], within_s: float = WAIT_S) -> None:
    """Wait until `holds`, while the event loop goes on."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"it did not happen within {within_s:g} s"
        await asyncio.sleep(PAUSE_S)
