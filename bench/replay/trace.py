"""Recorded sessions of agents: how long each request was, what it shared, and when it came.

A file holds {"sessions": [{"id": ..., "requests": [row, ...]}]}. A row has the second of the
request, the number of its agent, the tokens of its input and its output, the tokens that it shares
with an earlier request, the seconds of the recorded service, and the seconds of thought before it.
A trace holds no text.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from weftline.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A request. Its first `shared` tokens are those of an earlier request of the session and its
    answer. `think_s` is the time between the last answer and this request."""

    input: int
    output: int
    shared: int = 0
    think_s: float = 0.0
    agent: str = ""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A session. Its requests follow each other."""

    id: str
    turns: tuple[Turn, ...]

    @property
    def largest(self) -> int:
        """The tokens of its longest context."""
        return max(turn.input + turn.output for turn in self.turns)

    def scaled(self, factor: float) -> Recorded:
        """All lengths and times multiplied by `factor`. No length becomes less than a token."""
        turns = [
            replace(
                one,
                input=max(1, round(one.input * factor)),
                output=max(1, round(one.output * factor)),
                shared=round(one.shared * factor),
                think_s=one.think_s * factor,
            )
            for one in self.turns
        ]
        return Recorded(self.id, tuple(turns))


def read(path: Path) -> list[Recorded]:
    """The sessions of a file. Raises InvalidRequest for what is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["sessions"]
        sessions = [Recorded(one["id"], tuple(map(_row, one["requests"]))) for one in found]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"{path} is no trace that we read: {error!r}", param="trace") from None
    return [one for one in sessions if one.turns]


def _row(row: Sequence[float]) -> Turn:
    _, agent, given, made, shared, _, think_s, *_ = row
    return Turn(
        input=int(given),
        output=int(made),
        shared=int(shared),
        think_s=float(think_s),
        agent=str(int(agent)),
    )


def drawn(sessions: int, seed: int = 0) -> list[Recorded]:
    """Sessions drawn from distributions like those of real coding agents.

    Fitted by eye to 124 recorded sessions. In the median a session has 45 requests; the first has
    26,000 tokens, one in the middle 97,000, of which 700 are new. A request in sixty begins anew
    at the system prompt, as after a compaction or in a subagent.
    """
    return [_drawn(f"synthetic {n}", random.Random(f"{seed}/{n}")) for n in range(sessions)]


def _drawn(name: str, rng: random.Random) -> Recorded:
    turns: list[Turn] = []
    context = int(rng.lognormvariate(10.16, 0.5))
    system = min(context, 15_000)
    shared = 0
    for number in range(min(250, max(4, int(rng.lognormvariate(3.8, 0.8))))):
        if number and rng.random() < 1 / 60:
            shared, context = system, system + int(rng.lognormvariate(8.0, 0.8))
        output = int(rng.lognormvariate(5.4, 0.9)) + 1
        think_s = 0.0 if number == 0 else rng.lognormvariate(2.2, 1.3)
        turns.append(Turn(input=context, output=output, shared=shared, think_s=think_s))
        shared = context + output
        context = shared + int(rng.lognormvariate(6.2, 2.0)) + 1
    return Recorded(name, tuple(turns))
