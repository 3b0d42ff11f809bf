"""Requests with tools: a mix drawn from published figures, or a file of lengths.

A file holds {"requests": [{"class": ..., "segments": [...]}]} or {id: [segment, ...]}. A segment
has prompt_tokens, completion_tokens, api_time, and return_tokens or api_token_length. Its prompt
counts all tokens so far, as in InferCept's traces; only the first one is used.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# No request grows beyond this, as in both papers' experiments.
MOST_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Turn:
    """`output` tokens. If `tool` is not empty it then runs for `pause_s`, and returns `returned`
    tokens."""

    output: int
    tool: str = ""
    pause_s: float = 0.0
    returned: int = 0


@dataclass(frozen=True, slots=True)
class Agent:
    """A request: its class, the tokens of its prompt, and its turns. The last has no tool."""

    kind: str
    prompt: int
    turns: tuple[Turn, ...]

    @property
    def paused_s(self) -> float:
        """The seconds of all its tools."""
        return sum(turn.pause_s for turn in self.turns)

    @property
    def output(self) -> int:
        """The tokens that it generates."""
        return sum(turn.output for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Class:
    """Means and deviations of a class of the mix: its share, the calls of a request, the seconds of
    one, and the tokens of the first prompt, of an answer and of a tool's result."""

    name: str
    share: int
    calls: tuple[float, float]
    pause_s: tuple[float, float]
    prompt: tuple[float, float]
    output: tuple[float, float]
    returned: tuple[float, float]


# Calls and seconds are of the table in InferCept and LAMPS, and lengths of the published traces.
# The calls of ve are those of the traces, which end at 2,048 tokens.
MIX = (
    Class("math", 98, (3.75, 1.3), (9e-5, 6e-5), (405, 18), (125, 139), (21, 5)),
    Class("chatbot", 65, (4.45, 1.96), (28.6, 15.6), (117, 291), (118, 158), (42, 110)),
    Class("qa", 50, (2.52, 1.73), (0.69, 0.17), (934, 7), (183, 137), (57, 9)),
    Class("tts", 65, (6.91, 3.93), (17.24, 7.6), (117, 291), (34, 28), (25, 80)),
    Class("ve", 54, (5.35, 1.0), (0.09, 0.014), (1973, 0), (4, 0), (10, 11)),
    Class("image", 65, (6.91, 3.93), (20.03, 7.8), (117, 291), (34, 28), (25, 80)),
)


def drawn(seed: int) -> Agent:
    """Request number `seed` of the mix."""
    rng = random.Random(f"lamps {seed}")
    kind = rng.choices(MIX, [one.share for one in MIX])[0]
    calls = max(1, round(rng.gauss(*kind.calls)))
    turns = [
        Turn(
            output=_tokens(rng, kind.output),
            tool=kind.name,
            pause_s=_log_normal(rng, *kind.pause_s),
            returned=_tokens(rng, kind.returned),
        )
        for _ in range(calls)
    ]
    turns.append(Turn(_tokens(rng, kind.output)))
    return cut(kind.name, _tokens(rng, kind.prompt), turns)


def read(file: Path) -> list[Agent]:
    """The requests of a trace file."""
    found = json.loads(file.read_text(encoding="utf-8"))
    if "requests" in found:
        each = [(one["class"], one["segments"]) for one in found["requests"]]
    else:
        each = [("", segments) for segments in found.values()]
    return [_of(kind, segments) for kind, segments in each if segments]


def _of(kind: str, segments: Sequence[dict[str, object]]) -> Agent:
    turns = []
    for number, one in enumerate(segments):
        output = int(str(one["completion_tokens"]))
        if number + 1 == len(segments):
            turns.append(Turn(output))
            break
        returned = one.get("return_tokens", one.get("api_token_length", 0))
        tool = str(one.get("api_kind") or kind or "tool")
        turns.append(Turn(output, tool, float(str(one["api_time"])), int(str(returned))))
    return cut(kind, int(str(segments[0]["prompt_tokens"])), turns)


def cut(kind: str, prompt: int, turns: Sequence[Turn]) -> Agent:
    """A request of at most MOST_TOKENS. It ends with the turn that would exceed them."""
    prompt = max(2, min(prompt, MOST_TOKENS // 2 if kind != "ve" else MOST_TOKENS - 16))
    left = MOST_TOKENS - prompt
    kept: list[Turn] = []
    for turn in turns:
        output = max(2, turn.output)
        returned = max(2, turn.returned) if turn.tool else 0
        if output + returned + 2 > left or not turn.tool:
            kept.append(Turn(max(2, min(output, left))))
            break
        kept.append(Turn(output, turn.tool, turn.pause_s, returned))
        left -= output + returned
    return Agent(kind, prompt, tuple(kept))


def _tokens(rng: random.Random, of: tuple[float, float]) -> int:
    return max(2, round(_log_normal(rng, *of)))


def _log_normal(rng: random.Random, mean: float, deviation: float) -> float:
    """Positive, with this mean and deviation."""
    if not deviation:
        return mean
    variance = math.log(1 + (deviation / mean) ** 2)
    return rng.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance))
