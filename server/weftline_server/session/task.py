"""Tasks and primitives under way: their states, and the times of each primitive's phases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from weakref import ref

from weftline.contract.errors import WeftlineError
from weftline_engine.api import FinishReason, Usage
from weftline_server.graph.engine_score import EngineScore
from weftline_server.graph.primitive import Primitive, Task
from weftline_server.session.origin import NOBODY, Origin


class RunState(StrEnum):
    """The state of a primitive. A task has the state of its first unfinished primitive."""

    WAITING = "waiting"  # for an input
    QUEUED = "queued"  # on its way to an engine
    RUNNING = "running"  # an engine has it
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"  # it served only the side that a branch did not take


_S = RunState
ALLOWED: Mapping[RunState, frozenset[RunState]] = MappingProxyType(
    {
        _S.WAITING: frozenset({_S.QUEUED, _S.FAILED, _S.CANCELLED, _S.SKIPPED}),
        _S.QUEUED: frozenset({_S.RUNNING, _S.FAILED, _S.CANCELLED, _S.SKIPPED}),
        _S.RUNNING: frozenset({_S.DONE, _S.FAILED, _S.CANCELLED, _S.SKIPPED}),
        _S.DONE: frozenset(),
        _S.FAILED: frozenset(),
        _S.CANCELLED: frozenset(),
        _S.SKIPPED: frozenset(),
    }
)

LIVE = frozenset(state for state, moves in ALLOWED.items() if moves)
UNDER_WAY = frozenset({_S.QUEUED, _S.RUNNING})


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's text, bytes and natural log probability, with the likeliest tokens in its place."""

    text: str
    data: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(slots=True)
class PrimitiveTimes:
    """The times of a primitive's phases, in seconds of the monotonic clock."""

    queued: float
    sent: float | None = None
    finished: float | None = None
    transform_s: float = 0.0
    engine: str | None = None
    node: str = ""  # the machine, where the engine runs on another one
    why: tuple[EngineScore, ...] = ()  # what placement weighed, for `engine` first
    admitted: float | None = None  # to the KV cache, if it waited for that
    charged: int = 0  # tokens of its prompt and its longest output
    made: int = 0  # tokens of its output so far
    usage: Usage | None = None
    reason: FinishReason | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)  # only if the client asked for them
    thoughts: list[str] = field(default_factory=list)  # that are no part of the text

    @property
    def queue_s(self) -> float | None:
        """Seconds until its first engine step; 0 if that step ran before the call was ready."""
        return None if self.usage is None else max(0.0, self.usage.started - self.queued)

    @property
    def kv_s(self) -> float | None:
        """Seconds of `queue_s` in which its application was not admitted to the KV cache."""
        if self.usage is None:
            return None
        return 0.0 if self.admitted is None else max(0.0, self.admitted - self.queued)

    @property
    def fill_s(self) -> float | None:
        """Seconds of prefill after the call was ready.

        An early fill runs before the call is ready, so its time does not count.
        """
        usage = self.usage
        return None if usage is None else max(0.0, usage.filled - max(usage.started, self.queued))

    @property
    def generate_s(self) -> float | None:
        """Seconds from the end of prefill to the last token."""
        if self.usage is None or self.finished is None:
            return None
        return self.finished - self.usage.filled

    @property
    def phases(self) -> Mapping[str, float] | None:
        """Seconds by phase of a generated output; None of any other primitive."""
        queue_s, fill_s, generate_s = self.queue_s, self.fill_s, self.generate_s
        if queue_s is None or fill_s is None or generate_s is None:
            return None
        return {
            "queue": queue_s,
            "fill": fill_s,
            "generate": generate_s,
            "transform": self.transform_s,
        }


@dataclass(slots=True, eq=False)
class PrimitiveRun:
    """A primitive of a session: its state, and its step once it was queued."""

    id: str
    work: int
    output: int  # of the work
    # Weak, since the task has its primitives, and the session has the task. Of a session of five
    # calls 142 objects hung on these circles, which only the garbage collector frees.
    of_task: ref[TaskRun] = field(repr=False)
    state: RunState = RunState.WAITING
    filling: bool = False  # a part of its prompt may have gone to an engine early
    step: PrimitiveTimes | None = None
    ready: int = 0  # the reads, from the first on, that have a value in the form `looked_at`
    looked_at: Primitive | None = field(default=None, repr=False)
    held: bool = False  # it came with many, and its turn to start has not come
    tokens: int = 0  # charged to the budget: those of its prompt and of its longest output

    @property
    def live(self) -> bool:
        return self.state in LIVE

    @property
    def task(self) -> TaskRun:
        found = self.of_task()
        assert found is not None, f"primitive {self.id} is used after its session is gone"
        return found


@dataclass(slots=True, eq=False, weakref_slot=True)
class TaskRun:
    """A task of a session and its primitives, in order."""

    task: Task
    submitted: float
    detached: bool
    origin: Origin = NOBODY
    error: WeftlineError | None = None
    ended: float | None = None  # when its last primitive that has ended did
    primitives: tuple[PrimitiveRun, ...] = field(init=False)

    def __post_init__(self) -> None:
        own = ref(self)
        runs = [PrimitiveRun(one.id, one.work, one.output, own) for one in self.task.primitives]
        self.primitives = tuple(runs)

    @property
    def current(self) -> PrimitiveRun:
        """The first primitive that is not done, or the last one."""
        for run in self.primitives:
            if run.state is not RunState.DONE:
                return run
        return self.primitives[-1]

    @property
    def state(self) -> RunState:
        return self.current.state

    @property
    def live(self) -> bool:
        return self.current.live

    @property
    def steps(self) -> list[PrimitiveTimes]:
        """The steps of the primitives that were queued, in order."""
        return [run.step for run in self.primitives if run.step is not None]
