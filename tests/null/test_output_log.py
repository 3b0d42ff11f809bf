"""What a process prints is heard until nobody waits for it any more."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.waits import WAIT_S
from weftline_engine.transport.output_log import Printed


async def test_a_cancelled_end_closes_the_pipe() -> None:
    """The other end stays open, as it does where a killed process has started others."""
    async with Printed.opened(None) as (printed, output):
        held = os.dup(output.fileno())
    ending = asyncio.create_task(printed.end())
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    await asyncio.wait_for(printed.whole.wait(), WAIT_S)
    os.close(held)
