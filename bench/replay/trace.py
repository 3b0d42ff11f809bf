"""Recorded sessions of agents: how long each request was, what it shared, and when it came.

Three forms are read. A file with "sessions" holds them as rows of numbers; its "about" names the
columns. A file or folder of kv-cache-tester has a session in each file, with the ids of its blocks.
A file of aiperf has a request in each line, in Mooncake's form. A trace holds no text.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weftline.errors import InvalidRequest

# The tokens that an id of a block stands for, where the file does not say: kv-cache-tester's and
# Mooncake's.
BLOCK, MOONCAKE_BLOCK = 64, 512
# A request is compared with this many before it. More would cost time and find little.
LOOKBACK = 40


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
    """The sessions of a file or folder. Raises InvalidRequest for what is none."""
    try:
        if path.is_dir():
            return [one for file in sorted(path.glob("*.json")) for one in read(file)]
        text = path.read_text(encoding="utf-8")
        found = _mooncake(text) if path.suffix == ".jsonl" else _json(json.loads(text), path.stem)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise InvalidRequest(f"{path} is no trace that we read: {error!r}", param="trace") from None
    return [one for one in found if one.turns]


def _json(value: Mapping[str, Any], name: str) -> list[Recorded]:
    if "sessions" in value:
        return [Recorded(one["id"], tuple(map(_row, one["requests"]))) for one in value["sessions"]]
    block = int(value.get("block_size", BLOCK))
    return [Recorded(name, tuple(_of_blocks(_in_order(value["requests"], ""), block)))]


def _row(row: Sequence[float]) -> Turn:
    _, agent, given, made, shared, _, think_s, *_ = row
    return Turn(
        input=int(given),
        output=int(made),
        shared=int(shared),
        think_s=float(think_s),
        agent=str(int(agent)),
    )


@dataclass(frozen=True, slots=True)
class _Request:
    """One request of a recorded session, with the seconds of thought after it."""

    at: float
    agent: str
    input: int
    output: int
    blocks: tuple[int, ...]
    think_s: float


def _in_order(requests: Iterable[Mapping[str, Any]], agent: str, at: float = 0.0) -> list[_Request]:
    """All requests, also of agents below this one, by the time at which they came."""
    found: list[_Request] = []
    for one in requests:
        began = at + float(one["t"])
        if "requests" in one:
            found += _in_order(one["requests"], str(one["agent_id"]), began)
            continue
        ids = tuple(map(int, one["hash_ids"]))
        think_s = float(one.get("think_time", 0.0))
        found.append(_Request(began, agent, int(one["in"]), int(one["out"]), ids, think_s))
    return sorted(found, key=lambda one: one.at)


def _mooncake(text: str) -> list[Recorded]:
    """Requests by session. A line without one is a session of its own."""
    sessions: dict[str, list[_Request]] = {}
    for number, line in enumerate(text.splitlines()):
        if not line.strip():
            continue
        one = json.loads(line)
        name = str(one.get("session_id") or f"line {number + 1}")
        ids = tuple(map(int, one.get("hash_ids") or ()))
        request = _Request(
            float(one.get("timestamp") or 0) / 1e3,
            "",
            int(one["input_length"]),
            int(one.get("output_length") or 1),
            ids,
            float(one.get("delay") or 0) / 1e3,
        )
        sessions.setdefault(name, []).append(request)
    return [
        Recorded(name, tuple(_of_blocks(requests, MOONCAKE_BLOCK)))
        for name, requests in sessions.items()
    ]


def _of_blocks(requests: Sequence[_Request], block: int) -> Iterator[Turn]:
    for number, one in enumerate(requests):
        before = requests[max(0, number - LOOKBACK) : number]
        shared = max((_common(one.blocks, other.blocks) for other in before), default=0)
        yield Turn(
            input=one.input,
            output=one.output,
            shared=min(one.input, shared * block),
            think_s=one.think_s,
            agent=one.agent,
        )


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count


def synthetic(sessions: int, seed: int = 0) -> list[Recorded]:
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
        turn = Turn(input=context, output=output, shared=shared, think_s=think_s)
        turns.append(turn)
        shared = context + output
        context = shared + int(rng.lognormvariate(6.2, 2.0)) + 1
    return Recorded(name, tuple(turns))
