"""An op as the scheduler sees it: its tokens, how many of them are computed, and its blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import TypeAlias

from weftline_engine.api import Hints, Kind, Op
from weftline_engine.bookkeeping.kv.tree import Node

# Stands for a token that a step samples on a device and that the host has not read yet. It is the
# last token of its sequence, and no token of a prompt is negative.
UNREAD = -1

# The sort key of a sequence: whether it is open, the score and first arrival of its application,
# and its own score and arrival.
Rank: TypeAlias = tuple[bool, float, int, float, int]


class Phase(Enum):
    """The state of a sequence."""

    HELD = auto()  # not queued: its parent context is not ready
    WAITING = auto()  # queued without blocks; also again after a preemption
    RUNNING = auto()  # holds blocks, and is considered in every step
    DONE = auto()


ALLOWED: Mapping[Phase, frozenset[Phase]] = MappingProxyType(
    {
        Phase.HELD: frozenset({Phase.WAITING, Phase.DONE}),
        Phase.WAITING: frozenset({Phase.RUNNING, Phase.DONE}),
        Phase.RUNNING: frozenset({Phase.WAITING, Phase.DONE}),
        Phase.DONE: frozenset(),
    }
)


@dataclass(eq=False, slots=True)
class Sequence:
    """`tokens` are those of the context: parent, payload and output.

    `blocks` hold the first `computed` tokens. The tokens of a planned step count as computed. The
    first `len(held)` blocks are nodes of the tree, and the others belong to the sequence. `cached`
    counts the prompt tokens that were found in the tree. `born` is the time at which the server
    queued the sequence, in seconds of the engine's clock. The next plan sets it.
    """

    op: Op
    arrival: int
    tokens: list[int] = field(default_factory=list)
    prompt: int = 0
    open: bool = False
    phase: Phase = Phase.HELD
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    held: list[Node] = field(default_factory=list)
    cached: int = 0
    filled: bool = False  # the whole prompt has been computed once
    hints: Hints = field(init=False)
    born: float = 0.0
    grain: int = 1  # an open prompt is computed in multiples of this many tokens: a block
    rank: Rank = (False, 0.0, 0, 0.0, 0)

    def __post_init__(self) -> None:
        self.hints = self.op.hints

    @property
    def generates(self) -> bool:
        return self.op.kind == Kind.GENERATE

    @property
    def output(self) -> int:
        return len(self.tokens) - self.prompt

    @property
    def ready(self) -> int:
        """How many tokens may be computed now.

        The last token of an open prompt waits for the next one, because its logits are needed only
        if it stays the last. The tokens before it are computed in whole blocks. So if several
        prompts grow by the same text, one sequence computes each block, and the others reuse it.
        """
        if not self.open:
            return len(self.tokens)
        known = len(self.tokens) - (1 if self.generates else 0)
        return known - known % self.grain

    @property
    def left(self) -> int:
        """How many tokens may be computed now and are not computed yet."""
        return max(0, self.ready - self.computed)

    @property
    def complete(self) -> bool:
        """Whether every token is computed and no more will be fed."""
        return not self.open and self.computed == len(self.tokens)

    @property
    def known(self) -> int:
        """How many of the tokens the host has read: all of them, or all but the last one."""
        return len(self.tokens) - (self.tokens[-1:] == [UNREAD])

    def expect(self) -> None:
        """Count the next token as there, although the host has not read it yet."""
        self.tokens.append(UNREAD)

    def resolve(self) -> None:
        """Make room for the token that `expect` stood for."""
        del self.tokens[self.known :]

    def feed(self, tokens: tuple[int, ...], *, last: bool) -> None:
        """Append to an open prompt."""
        self.tokens.extend(tokens)
        self.prompt += len(tokens)
        self.open = not last

    def move_to(self, phase: Phase) -> None:
        assert phase in ALLOWED[self.phase], f"op {self.op.id}: {self.phase} to {phase}"
        self.phase = phase
