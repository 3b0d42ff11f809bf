"""The engines of the server as JSON, with the tokens a second that each had lately."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from weftline_server.schedule.engines.activity import EngineActivity, Tokens

WINDOW_S = 5.0  # that rates are the mean of: prompts are counted at once, when their call ends


class EngineRates:
    """One reader of the engines. It remembers the tokens of the last WINDOW_S."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, Tokens]]] = {}

    def rows(self, engines: Sequence[EngineActivity], now: float) -> list[dict[str, Any]]:
        """A row for each engine at second `now`. The first rows have no rates yet."""
        rows = []
        for engine in engines:
            row = {**asdict(engine), "state": engine.state.value}
            row["rates"] = None if engine.tokens is None else self._rate(engine, now)
            rows.append(row)
        return rows

    def _rate(self, engine: EngineActivity, now: float) -> dict[str, float] | None:
        assert engine.tokens is not None
        seen = self._seen.setdefault(engine.name, deque())
        seen.append((now, engine.tokens))
        while len(seen) > 2 and now - seen[1][0] >= WINDOW_S:
            seen.popleft()
        then, before = seen[0]
        if now <= then:
            return None
        return {
            name: (count - getattr(before, name)) / (now - then)
            for name, count in asdict(engine.tokens).items()
        }
