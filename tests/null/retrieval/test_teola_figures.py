"""Two examples of Teola's paper on a simulated engine: batch size (Figure 4a) and depth (Figure 7).

The clock is virtual, so the seconds are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from weftline_engine import api
from weftline_engine.services.retrieval.batching import Slots, Waiting, form
from weftline_engine.services.retrieval.core import ItemsCore
from weftline_engine.services.retrieval.plain_backends import WordBackend

REQUESTS = 48


class Timed(WordBackend):
    """An embedder of Figure 4a: a batch of 4 takes 0.15 s, one of 16 takes 0.45 s."""

    def __init__(self) -> None:
        super().__init__("words")
        self.now = 0.0

    def compute(self, kind: str, payloads: Sequence[Any]) -> Sequence[Any]:
        self.now += 0.05 + 0.025 * len(payloads)
        return super().compute(kind, payloads)


@pytest.mark.parametrize(("batch", "seconds"), [(4, 1.8), (16, 1.35)])
def test_figure_4a_a_larger_batch_embeds_48_requests_sooner(batch: int, seconds: float) -> None:
    """1.8 s in batches of 4, and 1.35 s in batches of 16: 1.33 times as fast."""
    engine = Timed()
    core = ItemsCore(engine, most_items=batch, clock=lambda: engine.now)
    for number in range(REQUESTS):
        text = {"texts": [f"chunk {number}"]}
        core.submit(api.Op(id=f"{number}", kind="embed", context=f"{number}", inputs=text))
    ended = 0
    while core.busy:
        ended += sum(isinstance(event, api.Finished) for event in core.step())
    assert ended == REQUESTS
    assert engine.now == pytest.approx(seconds)


def test_figure_7_the_deepest_parts_share_a_batch() -> None:
    """A batch has 1,024 tokens and each part 512. One part takes 0.5 s and two take 0.8 s.

    A and H lead to other parts, B and G do not. In the order of their names A runs beside B, so
    what follows H starts after 1.6 s. By depth A and H go first, and it starts after 0.8 s.
    """
    depths = {"A": 2, "B": 1, "G": 1, "H": 2}
    slots, seconds = Slots(items=16, tokens=1024), {1: 0.5, 2: 0.8}

    def batches(depth: dict[str, int]) -> dict[str, float]:
        """When each part ends."""
        done: dict[str, float] = {}
        now = 0.0
        while left := [name for name in depths if name not in done]:
            hints = {name: api.Hints(application="q", depth=depth.get(name, 0)) for name in left}
            chosen = form((Waiting(name, hints[name], (512,)) for name in left), slots)
            now += seconds[len(chosen)]
            done.update(dict.fromkeys((share.op for share in chosen), now))
        return done

    blind, aware = batches({}), batches(depths)
    assert blind == {"A": 0.8, "B": 0.8, "G": 1.6, "H": 1.6}
    assert aware == {"A": 0.8, "H": 0.8, "B": 1.6, "G": 1.6}
