"""Coding sessions as texts: those that AIPerf generates, or those that we draw.

AIPerf's file has a JSON object a line. The first line of a session has its whole prompt as blocks
with numbers, which sessions share where they are equal. A later line has the tokens that are new.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weftline.errors import InvalidRequest

from .trace import Recorded

BLOCK = 512  # tokens of AIPerf's blocks
SYSTEM = 15_000  # tokens that all drawn sessions begin with

Piece = tuple[str, int]  # the name of a text, and its tokens


@dataclass(frozen=True, slots=True)
class CodingTurn:
    """What the client adds to the conversation, the tokens of the answer, and the seconds before
    the request."""

    pieces: tuple[Piece, ...]
    output: int
    think_s: float


@dataclass(frozen=True, slots=True)
class CodingSession:
    """A session whose conversation only grows."""

    turns: tuple[CodingTurn, ...]

    def scaled(self, lengths: float, times: float, turns: int | None) -> CodingSession:
        """The first `turns` of it. No text and no answer becomes less than two tokens."""
        return CodingSession(
            tuple(
                replace(
                    one,
                    pieces=tuple((name, max(2, round(n * lengths))) for name, n in one.pieces),
                    output=max(2, round(one.output * lengths)),
                    think_s=one.think_s * times,
                )
                for one in self.turns[:turns]
            )
        )


def read_aiperf(path: Path) -> list[CodingSession]:
    """The sessions of a file of `aiperf synthesize agentic-code`. Raises InvalidRequest."""
    found: dict[str, list[CodingTurn]] = {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            turns = found.setdefault(row["session_id"], [])
            turns.append(_turn(row, len(turns)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"{path} is no file of AIPerf's: {error!r}", param="trace") from None
    return [CodingSession(tuple(turns)) for turns in found.values()]


def _turn(row: Mapping[str, Any], number: int) -> CodingTurn:
    left = int(row["input_length"])
    pieces: list[Piece] = []
    if number:
        pieces.append((f"{row['session_id']} {number}", left))
    else:
        for block in row["hash_ids"]:
            pieces.append((f"block {block}", min(BLOCK, left)))
            left = max(1, left - BLOCK)
    delay = float(row.get("delay", 0.0))
    return CodingTurn(tuple(pieces), int(row["output_length"]), delay / 1000)


def of_drawn(sessions: Sequence[Recorded]) -> list[CodingSession]:
    """Drawn sessions, each up to the first request that begins anew."""
    return [CodingSession(tuple(_grown(one))) for one in sessions]


def _grown(session: Recorded) -> list[CodingTurn]:
    made: list[CodingTurn] = []
    held = 0
    for number, turn in enumerate(session.turns):
        if turn.shared < held:
            break
        shared = min(SYSTEM, turn.input) if number == 0 else 0
        new = max(1, turn.input - turn.shared - shared)
        pieces = ((f"{session.id} {number}", new),)
        made.append(
            CodingTurn(
                (("system", shared), *pieces) if shared else pieces, turn.output, turn.think_s
            )
        )
        held = turn.input + turn.output
    return made
