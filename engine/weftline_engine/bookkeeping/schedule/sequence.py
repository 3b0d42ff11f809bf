"""An op as the scheduler sees it: its tokens, how far they are computed, and the blocks it uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from weftline_engine.api import Hints, Kind, Op
from weftline_engine.bookkeeping.kv.tree import Node

if TYPE_CHECKING:
    from torch import Tensor


# Open, the application's score and first arrival, the call's own score, its arrival.
Rank: TypeAlias = tuple[bool, float, int, float, int]


class Phase(Enum):
    """Where a sequence is in its life."""

    HELD = auto()  # its parent context is not there yet
    WAITING = auto()  # holds no blocks; also again after it was preempted
    RUNNING = auto()  # holds blocks, and is looked at in every step
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
    """`tokens` are the context's: parent, payload and output.

    `blocks` hold the first `computed` of them (after a step is planned: as if it had run). The
    first `len(held)` of these blocks are nodes of the tree, the others its own. `cached` counts
    the prompt's tokens that were found in the tree. `born` is the step before which it was queued.
    """

    op: Op
    arrival: int
    tokens: list[int] = field(default_factory=list)
    prompt: int = 0
    open: bool = False
    phase: Phase = Phase.WAITING
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    held: list[Node] = field(default_factory=list)
    cached: int = 0
    filled: bool = False  # the whole prompt has been computed once
    hints: Hints = field(init=False)
    born: int = 0
    grain: int = 1  # tokens that an open prompt is computed by: a block
    rank: Rank = (False, 0.0, 0, 0.0, 0)

    def __post_init__(self) -> None:
        self.hints = self.op.hints

    @property
    def generates(self) -> bool:
        return self.op.kind is Kind.GENERATE

    @property
    def output(self) -> int:
        return len(self.tokens) - self.prompt

    @property
    def ready(self) -> int:
        """How many tokens may be computed now.

        The last of an open prompt waits for the next one: what it predicts is wanted only if it
        stays the last. The others go by whole blocks, so that prompts which grow by the same text
        meet at the border of each, and one computes it for all.
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
        """Whether nothing is missing, nor will come by feed."""
        return not self.open and self.computed == len(self.tokens)

    def move_to(self, phase: Phase) -> None:
        assert phase in ALLOWED[self.phase], f"op {self.op.id}: {self.phase} to {phase}"
        self.phase = phase


@dataclass(eq=False, slots=True)
class Context:
    """A named range of tokens: its text stays known when its KV cache is dropped.

    `held` pins the nodes of `tokens`; empty while the op that makes it runs, after a drop, and
    while the blocks are in `stash`.
    """

    id: str
    salt: str
    maker: str
    attempt: int
    tokens: tuple[int, ...] = ()
    held: list[Node] = field(default_factory=list)
    ready: bool = False
    computed: int = 0  # of its tokens; not the last one that a generate sampled
    used: int = 0
    stash: Tensor | None = None  # its blocks in host memory, pages in dimension 3
