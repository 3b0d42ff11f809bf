"""A call under way: its state, the output it is at, and what each output took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from weftline.errors import WeftlineError
from weftline_engine.api import FinishReason, Usage
from weftline_server.graph.graph import Node

CHARS_PER_TOKEN = 4  # of English, under the tokenizers in use
GUESSED_OUTPUT = 128  # tokens, where nobody says


class CallState(StrEnum):
    """Where a call stands. It is QUEUED again for each further output and for a retry."""

    WAITING = "waiting"  # for an input
    QUEUED = "queued"  # its next primitive is on the way to an engine
    RUNNING = "running"  # an engine has it
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


_S = CallState
ALLOWED: Mapping[CallState, frozenset[CallState]] = MappingProxyType(
    {
        _S.WAITING: frozenset({_S.QUEUED, _S.FAILED, _S.CANCELLED}),
        _S.QUEUED: frozenset({_S.RUNNING, _S.FAILED, _S.CANCELLED}),
        _S.RUNNING: frozenset({_S.WAITING, _S.QUEUED, _S.DONE, _S.FAILED, _S.CANCELLED}),
        _S.DONE: frozenset(),
        _S.FAILED: frozenset(),
        _S.CANCELLED: frozenset(),
    }
)


UNDER_WAY = frozenset({_S.QUEUED, _S.RUNNING})


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's text and bytes, the natural log of its probability, the likeliest in its place."""

    text: str
    data: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(slots=True)
class Step:
    """One output of a call: when its phases ended, in seconds of the monotonic clock."""

    queued: float
    sent: float | None = None
    finished: float | None = None
    transform_s: float = 0.0
    engine: str | None = None
    node: str = ""  # the machine of an engine elsewhere
    usage: Usage | None = None
    reason: FinishReason | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)  # where the client asks for them

    @property
    def queue_s(self) -> float | None:
        """Seconds until its first step in an engine; 0 if that came before the call was ready."""
        return None if self.usage is None else max(0.0, self.usage.started - self.queued)

    @property
    def fill_s(self) -> float | None:
        """Seconds until its prompt was computed. What was filled before the call was ready took
        none of its time, and what it waited for in between is no filling."""
        usage = self.usage
        return None if usage is None else max(0.0, usage.filled - max(usage.started, self.queued))

    @property
    def generate_s(self) -> float | None:
        """Seconds from its computed prompt to its last token."""
        if self.usage is None or self.finished is None:
            return None
        return self.finished - self.usage.filled

    @property
    def phases(self) -> Mapping[str, float] | None:
        """Seconds by phase of an output that was generated; None of any other."""
        if self.queue_s is None or self.fill_s is None or self.generate_s is None:
            return None
        return {
            "queue": self.queue_s,
            "fill": self.fill_s,
            "generate": self.generate_s,
            "transform": self.transform_s,
        }


@dataclass(slots=True)
class CallRun:
    """A call of a session and how far it is; `index` is the output that it is at."""

    node: Node
    submitted: float
    detached: bool
    state: CallState = CallState.WAITING
    index: int = 0
    filling: bool = False  # some of the current output's prompt has gone to an engine early
    error: WeftlineError | None = None
    steps: list[Step] = field(default_factory=list)
    work: int = field(init=False)  # tokens that it takes, roughly: its text and its outputs

    def __post_init__(self) -> None:
        texts = (s.text for s in self.node.call.segments() if s.text is not None)
        values = (p.value for p in self.node.inputs if isinstance(p.value, str))
        chars = sum(map(len, (*texts, *values)))
        samplings = (p.sampling for p in self.node.outputs)
        tokens = (s.max_tokens if s and s.max_tokens else GUESSED_OUTPUT for s in samplings)
        self.work = chars // CHARS_PER_TOKEN + sum(tokens)

    @property
    def live(self) -> bool:
        return bool(ALLOWED[self.state])

    def move_to(self, state: CallState) -> None:
        name = self.node.call.name
        assert state in ALLOWED[self.state], f"call {name}: {self.state} to {state}"
        self.state = state
