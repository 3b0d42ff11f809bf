"""An op as the scheduler sees it: its tokens, how many of them are computed, and its blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import TypeAlias

from weftline_engine.api import Hints, Kind, Op
from weftline_engine.bookkeeping.kv.tree import Node

# Whether it is open, the application's score and first arrival, the call's own score, its arrival.
Rank: TypeAlias = tuple[bool, float, int, float, int]


class Phase(Enum):
    """Where a sequence is in its life."""

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

    `blocks` hold the first `computed` tokens. Once a step is planned, its tokens count as computed.
    The first `len(held)` blocks are nodes of the tree; the others belong to the sequence. `cached`
    counts the prompt tokens that were found in the tree. `born` is the second at which the
    server queued it, by the engine's clock, from the next plan on.
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
    grain: int = 1  # an open prompt is computed by multiples of this: a block
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

        The last token of an open prompt waits for the next one: its logits are wanted only if it
        stays the last. The tokens before it are computed by whole blocks. So prompts that grow by
        the same text meet at the border of each block, and one sequence computes it for all.
        """
        if not self.open:
            return len(self.tokens)
        known = len(self.tokens) - (1 if self.generates else 0)
        return known - known % self.grain

    @property
    def left(self) -> int:
        """Tokens that may be computed now and are not."""
        return max(0, self.ready - self.computed)

    @property
    def complete(self) -> bool:
        """Whether every token is computed and no more will be fed."""
        return not self.open and self.computed == len(self.tokens)

    def feed(self, tokens: tuple[int, ...], *, last: bool) -> None:
        """Append to an open prompt."""
        self.tokens.extend(tokens)
        self.prompt += len(tokens)
        self.open = not last

    def move_to(self, phase: Phase) -> None:
        assert phase in ALLOWED[self.phase], f"op {self.op.id}: {self.phase} to {phase}"
        self.phase = phase
