"""Reads from a server's metrics how full its KV cache is, and how many requests wait in it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

# Seconds between two readings of the metrics while ops run, and before the first. vLLM 0.32 took 14
# to 40 ms on two cores to write its metrics, so none are read during a short op that runs alone.
EVERY_S = 5.0
# A prompt is filled early only while less than this share of the cache is in use. In a full cache
# the early fill would be evicted before its call comes, and computed twice.
MOST_FILLED = 0.8
# A single waiting request may just have come, and waits for the next step. More wait for room.
MOST_WAITING = 1


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
        """Whether an early fill would delay no request, and would not be evicted soon."""
        return self.waiting <= MOST_WAITING and self.filled < MOST_FILLED

    def others(self, pool: int, requests: int, own: int) -> int:
        """The tokens of the `pool` that requests of other clients hold.

        Our own are `requests` requests of at most `own` tokens. A server may hold more than
        `own` without other clients, because blocks are filled in part and requests end while it
        responds. So there are other clients only if it has more requests than ours.
        """
        if self.waiting + self.running <= requests + 1:
            return 0
        return max(0, round(self.filled * pool) - own)


class GaugeNames:
    """The names of the metrics that a gauge is read from: `filled`, `waiting` and `running`.

    With `label`, such as engine="1", only samples that have it count.
    """

    def __init__(self, filled: str, waiting: str, running: str, label: str = "") -> None:
        self._names = tuple(name.encode() for name in (filled, waiting, running))
        names = b"|".join(map(re.escape, self._names))
        labels = rb"[^}]*%s[^}]*" % re.escape(label.encode())
        sample = rb"^(%s)\{%s\} ([0-9.e+-]+)\s*$" % (names, labels)
        self._value = re.compile(sample, re.MULTILINE)

    def read(self, metrics: bytes) -> Gauge | None:
        """Read the gauge from the text of GET /metrics. None if the text does not have it."""
        found: dict[bytes, list[float]] = {name: [] for name in self._names}
        for name, value in self._value.findall(metrics):
            try:
                found[name].append(float(value))
            except ValueError:
                return None
        filled, waiting, running = found.values()
        if not filled or not waiting or not all(0.0 <= one <= 1.0 for one in filled):
            return None
        return Gauge(max(filled), round(sum(waiting)), round(sum(running)))


class GaugeReader:
    """Reads the metrics while ops run, and calls `seen` with each gauge."""

    def __init__(
        self,
        metrics: Callable[[], Awaitable[bytes]],
        requests: Callable[[], int],
        seen: Callable[[Gauge, int], None],
        names: GaugeNames,
    ) -> None:
        self.last = Gauge()
        self._metrics = metrics
        self._requests = requests
        self._seen = seen
        self._names = names
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Read the metrics from now on until no op runs. Called when an op has come."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _look(self) -> None:
        await asyncio.sleep(EVERY_S)
        while before := self._requests():
            found = self._names.read(await self._metrics())
            if found is not None:
                self.last = found
                self._seen(found, max(before, self._requests()))
            await asyncio.sleep(EVERY_S)
        # Measurements of a busy server do not hold for the next op.
        self.last = Gauge()
        self._seen(self.last, 0)
