"""An embedder in simulated time: what the order of its batches is worth, and queries beside an
ingest.

The batches are formed by the embedder's own code. A batch takes as long as MiniLM does on one core
of an AMD EPYC: 5 ms and 0.34 ms a token.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weftline_engine import api
from weftline_engine.services.retrieval.core import CHARS_PER_TOKEN, ItemsCore
from weftline_engine.services.retrieval.items_host import batches
from weftline_engine.services.retrieval.plain_backends import WordBackend

STEP_S, TOKEN_S = 0.005, 0.00034
# The batch profile that MiniLM's embedder measures when it starts: items, tokens and seconds.
PROFILE = tuple((items, 32 * items, STEP_S + TOKEN_S * 32 * items) for items in (1, 4, 8, 32))
CHUNK, QUERY = 256, 20  # tokens of a chunk and of a question
CALLS_S = 1.5  # of the calls behind a search: an answer of 32 tokens that is refined once


@dataclass(frozen=True, slots=True)
class Arrival:
    """An op that comes at a time: `texts` texts of `tokens` tokens each."""

    at: float
    name: str
    texts: int
    tokens: int
    hints: api.Hints


class _Timed(WordBackend):
    """Counts the seconds that its steps would take."""

    def __init__(self) -> None:
        super().__init__("words")
        self.now = 0.0

    def lengths(self, kind: str, payloads: Sequence[Any]) -> Sequence[int]:
        return [len(text) // CHARS_PER_TOKEN for text in payloads]

    def compute(self, kind: str, payloads: Sequence[Any]) -> Sequence[Any]:
        chars = max(map(len, payloads)) * len(payloads)  # with the padding
        self.now += STEP_S + TOKEN_S * chars / CHARS_PER_TOKEN
        return super().compute(kind, payloads)


def ended(arrivals: Sequence[Arrival]) -> dict[str, float]:
    """The seconds of each op, from its arrival to its end."""
    backend = _Timed()
    slots = batches(replace(backend.describe(), batch_profile=PROFILE))
    core = ItemsCore(
        backend,
        most_items=slots.items,
        most_tokens=slots.tokens,
        kept=0,
        clock=lambda: backend.now,
    )
    waiting = [(one.at, number, one) for number, one in enumerate(arrivals)]
    heapq.heapify(waiting)
    came = {one.name: one.at for one in arrivals}
    found: dict[str, float] = {}
    while waiting or core.busy:
        if not core.busy:
            backend.now = max(backend.now, waiting[0][0])
        while waiting and waiting[0][0] <= backend.now:
            core.submit(_op(heapq.heappop(waiting)[2]))
        for event in core.step():
            if isinstance(event, api.Finished):
                found[event.op] = backend.now - came[event.op]
    return found


def _op(one: Arrival) -> api.Op:
    length = one.tokens * CHARS_PER_TOKEN
    texts = [f"{one.name} {number} ".ljust(length, "x") for number in range(one.texts)]
    return api.Op(
        id=one.name, kind="embed", context=one.name, inputs={"texts": texts}, hints=one.hints
    )


def turn(name: str, at: float = 0.0, *, aware: bool) -> list[Arrival]:
    """A turn of a chat with uploads: 8 chunks of a new text, which a later turn reads, and a
    question to the texts before. Its calls are 4 steps behind its embedding.
    """
    hints = api.Hints(application=name, arrival=at, turn=at + 0.2)
    deep = replace(hints, depth=5) if aware else hints
    return [
        Arrival(at, f"{name} chunks", 8, CHUNK, replace(hints, depth=1) if aware else hints),
        Arrival(at, f"{name} question", 1, QUERY, deep),
    ]


def by_depth(turns: int) -> float:
    """How many times faster answers come if the embedder knows the depth of its ops."""
    seconds = []
    for aware in (False, True):
        arrivals = [one for n in range(turns) for one in turn(f"t{n}", aware=aware)]
        found = ended(arrivals)
        seconds.append(
            statistics.mean(found[f"t{number} question"] + CALLS_S for number in range(turns))
        )
    return seconds[0] / seconds[1]


@dataclass(frozen=True, slots=True)
class Beside:
    """Seconds of questions, from the question to the end of their embedding."""

    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)

    def p90(self, behind_s: float) -> float:
        """The p90 beside the ingest over that alone, with `behind_s` seconds behind a search."""
        high = [statistics.quantiles(one, n=10)[-1] for one in (self.beside, self.alone)]
        return (high[0] + behind_s) / (high[1] + behind_s)


def questions_beside_ingest(chunks: int = 512, questions: int = 60) -> Beside:
    """A question every 0.7 s while a text of many chunks is embedded, and without that."""
    asked = [
        Arrival(
            0.7 * number + 0.3,
            f"q{number}",
            1,
            QUERY,
            api.Hints(application=f"q{number}", turn=0.7 * number + 0.3, depth=5),
        )
        for number in range(questions)
    ]
    ingest = Arrival(
        0.0, "ingest", chunks, CHUNK, api.Hints(application="upload", depth=1, turn=60.0)
    )
    alone, beside = ended(asked), ended([ingest, *asked])
    names = [one.name for one in asked]
    return Beside([alone[name] for name in names], [beside[name] for name in names])
