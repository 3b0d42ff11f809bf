"""Which branches of a run may soon make a model call: pure bookkeeping, which waits for nothing.

A branch is expected while it shows progress: LangChain has started or ended a run of the branch a
moment ago, and the branch has not called since. Nobody waits for a branch that is busy for longer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from threading import Condition, Thread
from types import CodeType
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from langchain_weftline.run.supersteps import Due, Task
from weftline.adapters.frames import current_frames


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a call may wait for calls that start beside it, in seconds.

    A call waits while a sibling has shown progress during the last `progress`, and at most
    `longest`. From its start to its call a map of three takes 1.2 to 3 ms on two cores beside other
    load, and the median wait is 3 ms (deciles of 40 runs). A thread that has been started takes
    less than `look` until LangChain tells of its run.
    """

    progress: float = 0.02
    longest: float = 0.06
    look: float = 0.001


# The functions in which a thread waits for another one. Up to Python 3.12 one is behind `join`.
_WAITS = frozenset(
    found.__code__
    for found in (Condition.wait, Thread.join, getattr(Thread, "_wait_for_tstate_lock", None))
    if found is not None
)


class Seat(Protocol):
    """A call that waits for its siblings."""

    @property
    def since(self) -> float:
        """When it came, on the monotonic clock."""

    @property
    def room(self) -> float:
        """The most calls that can wait at the same time, because each has a thread or a permit."""


S = TypeVar("S", bound=Seat)


class Group(Generic[S]):
    """The branches that may call together, and the calls that wait for them.

    `arriving` counts calls that have come and not decided yet whether they wait. `starters` has the
    threads of runs that have started other runs on threads of their own, and may start more.
    """

    def __init__(self) -> None:
        self.waiting: list[S] = []
        self.arriving = 0
        self.starters: dict[Hashable, int] = {}
        self._coming: OrderedDict[Hashable, float] = OrderedDict()  # the latest progress last
        self._looks_until = 0.0

    def expect(self, branch: Hashable, now: float) -> None:
        """Note that `branch` shows progress, and may call."""
        self._coming[branch] = now
        self._coming.move_to_end(branch)

    def forget(self, branch: Hashable) -> None:
        """Note that `branch` has called, has ended, or runs in branches of its own."""
        self._coming.pop(branch, None)

    def has_company(self, now: float, limits: Limits, is_starting: bool) -> bool:
        """Whether a call that arrives has a reason to wait. A call that is alone has none.

        `is_starting` says that a starter is not waiting for what it has started.
        """
        others = bool(self.waiting) or self.arriving > 1
        return others or is_starting or self._is_coming(now, limits)

    def take_due(self, now: float, limits: Limits, is_starting: bool) -> list[S]:
        """The calls to send now. It is empty while they wait for another one."""
        if not self.waiting:
            return []
        waited = now - self.waiting[0].since
        is_full = len(self.waiting) >= self.waiting[-1].room
        if is_starting and waited < limits.progress:
            self._looks_until = now + limits.look
        more = self.arriving or self._looks_until > now or self._is_coming(now, limits)
        if more and not is_full and waited < limits.longest:
            return []
        taken, self.waiting = self.waiting, []
        return taken

    def left(self, now: float, limits: Limits) -> float:
        """Seconds after which the waiting calls may have to go, unless something happens before."""
        if not self.waiting:
            return limits.progress
        until = self.waiting[0].since + limits.longest
        if self._looks_until > now:
            until = min(until, self._looks_until)
        elif self._coming:
            until = min(until, self._latest + limits.progress)
        return max(limits.look, until - now)

    @property
    def _latest(self) -> float:
        return next(reversed(self._coming.values()))

    def _is_coming(self, now: float, limits: Limits) -> bool:
        return bool(self._coming) and self._latest + limits.progress > now


@dataclass(eq=False, slots=True)
class Branch(Generic[S]):
    """A run that has not ended, inside the run `parent`.

    `inside` counts the open runs in it, and `calls` has the model calls that are about to come.
    `task` is LangGraph's task where the run is that of a node,
    and `due` has the tasks that the run, a graph, will start. `thread` is the thread on which it
    has started, or None for an event loop.
    """

    id: UUID
    parent: Branch[S] | None
    root: Branch[S] | None
    group: Group[S]
    task: Task | None = None
    thread: int | None = None
    due: Due = field(default_factory=Due)
    inside: int = 0
    calls: list[Hashable] = field(default_factory=list)
    sends: int = 0  # the most tasks that one run inside this one has asked for


def is_parked(thread: int) -> bool:
    """Whether a thread waits for other threads, as in `Future.result`, and so starts nothing.

    A thread that starts another one waits for a moment, too: it may start more.
    """
    frame = current_frames().get(thread)
    codes: list[CodeType] = []
    while frame is not None and len(codes) < 3:
        codes.append(frame.f_code)
        frame = frame.f_back
    return not codes or (codes[0] in _WAITS and Thread.start.__code__ not in codes)
