"""A semantic variable: empty → streaming → ready | failed | skipped, an append-only log of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from weftline.contract.errors import Skipped, WeftlineError
from weftline_server.prompt.tool_parser import Called, Delta


class VariableState(StrEnum):
    """The state of a variable. Only its session changes it."""

    EMPTY = "empty"
    STREAMING = "streaming"
    READY = "ready"
    FAILED = "failed"
    SKIPPED = "skipped"  # no branch took it; `error` says so to those who ask


_S = VariableState
ALLOWED: Mapping[VariableState, frozenset[VariableState]] = MappingProxyType(
    {
        _S.EMPTY: frozenset({_S.STREAMING, _S.READY, _S.FAILED, _S.SKIPPED}),
        _S.STREAMING: frozenset({_S.READY, _S.FAILED, _S.SKIPPED}),
        _S.READY: frozenset(),
        _S.FAILED: frozenset(),
        _S.SKIPPED: frozenset(),
    }
)

WITHOUT_VALUE = frozenset({_S.FAILED, _S.SKIPPED})


# Update consumers' early fills once per this many characters: some 64 tokens, which a GPU
# computes as fast as one. Rendering for each token cost 2 % of the time of `bench multi_agent` on 2
# cores.
PIECE_CHARS = 256


@dataclass(slots=True)
class SessionVariable:
    """`text` is the log, in characters; `value` is the result of the transforms, once ready."""

    id: str
    state: VariableState = VariableState.EMPTY
    parts: list[str] = field(default_factory=list)
    value: Any = None
    error: WeftlineError | None = None
    streamed: int = 0  # characters that came in parts
    # What was read of an answer that may call tools. Of a ready one the calls are left.
    deltas: list[Delta] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)  # of a list that is not complete
    reads: int = 0  # how often a client was given the value or a part of it
    taken: bool = False  # a client has text of it that was not complete
    attempt: int = 0  # the run whose text it has; texts of two runs may differ

    @property
    def text(self) -> str:
        if len(self.parts) > 1:
            self.parts = ["".join(self.parts)]
        return self.parts[0] if self.parts else ""

    @property
    def chars(self) -> int:
        return sum(map(len, self.parts))

    @property
    def settled(self) -> bool:
        """Whether the variable is ready, failed or skipped, and will not change any more."""
        return not ALLOWED[self.state]

    def move_to(self, state: VariableState) -> None:
        assert state in ALLOWED[self.state], f"variable {self.id}: {self.state} to {state}"
        self.state = state

    def append(self, text: str) -> bool:
        """Log a part of the text as the text is generated. Return whether another piece of the text
        is full."""
        if self.state is VariableState.EMPTY:
            self.move_to(VariableState.STREAMING)
        assert self.state is VariableState.STREAMING, f"variable {self.id} is {self.state}"
        self.parts.append(text)
        pieces = self.streamed // PIECE_CHARS
        self.streamed += len(text)
        return self.streamed // PIECE_CHARS > pieces

    def passed_on(self) -> list[Any]:
        """Note that a client has text of the variable from now on. Nothing follows from that."""
        self.taken = True
        return []

    def restart(self, attempt: int | None) -> None:
        """Forget the text, which will be generated again, in the next attempt or in this one."""
        assert not self.taken, f"a client has text of variable {self.id}"
        self.parts, self.streamed, self.deltas = [], 0, []
        self.attempt = self.attempt + 1 if attempt is None else attempt

    def set(self, value: Any) -> None:
        self.move_to(VariableState.READY)
        self.value = value
        if self.deltas:  # a stream goes on with the list that it has
            self.deltas = [one for one in self.deltas if isinstance(one, Called)]
        if not self.parts and isinstance(value, str):
            self.parts = [value]

    def fail(self, error: WeftlineError) -> None:
        self.move_to(VariableState.FAILED)
        self.error = error

    def skip(self) -> None:
        self.move_to(VariableState.SKIPPED)
        self.error = Skipped(f"variable {self.id!r} was skipped: no branch took it", param=self.id)


def settled_of(variables: Mapping[str, SessionVariable], named: Iterable[str]) -> Iterator[str]:
    """The variables among `named` that will not change any more."""
    return (id for id in named if id in variables and variables[id].settled)
