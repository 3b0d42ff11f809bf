"""Reads from vLLM's metrics how full its KV cache is, and how many requests wait in it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

# Seconds between two looks while ops run, and before the first. vLLM 0.32 took 14 to 40 ms to write
# its metrics on two cores, so a short op that runs alone has none beside it.
EVERY_S = 5.0
# An early fill of a prompt pays while less of the cache is in use. What is filled in a full cache
# is evicted before its call comes, and is computed twice.
MOST_FILLED = 0.8
# A request that has just come waits for the next step. More than one wait for room.
MOST_WAITING = 1

_VALUE = re.compile(
    rb"^vllm:(kv_cache_usage_perc|num_requests_waiting|num_requests_running)\{[^}]*\} "
    rb"([0-9.e+-]+)\s*$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Gauge:
    """The share of the KV blocks that requests hold, the requests that wait, and those that run.

    With several data-parallel engines they are the largest share and the sum of the requests.
    """

    filled: float = 0.0
    waiting: int = 0
    running: int = 0

    @property
    def has_room(self) -> bool:
        """Whether an early fill delays no other request, and stays until its call comes."""
        return self.waiting <= MOST_WAITING and self.filled < MOST_FILLED

    def others(self, pool: int, requests: int, own: int) -> int:
        """The tokens of the `pool` that requests of other clients hold beside ours, which are so
        many `requests` of at most `own` tokens.

        Blocks are filled in part and requests end while vLLM answers, so it holds more than `own`
        without other clients, too. These are there where it has more requests than ours.
        """
        if self.waiting + self.running <= requests + 1:
            return 0
        return max(0, round(self.filled * pool) - own)


def gauge(metrics: bytes) -> Gauge | None:
    """Return what the text of GET /metrics says, or None if it does not say it."""
    filled: list[float] = []
    waiting: list[float] = []
    running: list[float] = []
    lists = {b"kv_cache_usage_perc": filled, b"num_requests_waiting": waiting}
    for name, value in _VALUE.findall(metrics):
        try:
            number = float(value)
        except ValueError:
            return None
        lists.get(name, running).append(number)
    if not filled or not waiting or not all(0.0 <= one <= 1.0 for one in filled):
        return None
    return Gauge(max(filled), round(sum(waiting)), round(sum(running)))


class Meter:
    """Looks at the metrics while ops run, and tells `seen` of each gauge that it reads."""

    def __init__(
        self,
        metrics: Callable[[], Awaitable[bytes]],
        requests: Callable[[], int],
        seen: Callable[[Gauge, int], None],
        every_s: float,
    ) -> None:
        self.last = Gauge()
        self._metrics = metrics
        self._requests = requests
        self._seen = seen
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """An op has come: look at the metrics until none runs."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _look(self) -> None:
        await asyncio.sleep(self._every_s)
        while before := self._requests():
            found = gauge(await self._metrics())
            if found is not None:
                self.last = found
                self._seen(found, max(before, self._requests()))
            await asyncio.sleep(self._every_s)
        # What was true of a busy vLLM says nothing about the next op.
        self.last = Gauge()
        self._seen(self.last, 0)
