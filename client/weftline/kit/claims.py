"""Calls that were sent ahead, and how a request of the application finds the equal call."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any, Generic, Protocol, TypeVar

from weftline.contract.errors import WeftlineError
from weftline.kit.results import Result
from weftline.sdk.watch_events import Value

K = TypeVar("K", bound=Hashable)


class ReadValue(Protocol):
    """What a prompt reads: a result, or what follows from results."""

    def peek(self) -> Value | WeftlineError | None:
        """The value, or the error that it has instead. None while neither has arrived."""


@dataclass(eq=False)
class Planned(Generic[K]):
    """A call that was sent ahead, and its result.

    `reads` has what the call's prompt reads, by variable. `key_of` makes a key from
    their values. Two requests have equal keys only if their prompts and parameters are equal. The
    key is None where the application would fail before it makes the request.
    """

    result: Result
    reads: Mapping[str, ReadValue]
    key_of: Callable[[Mapping[str, Any]], K | None]
    is_claimed: bool = False

    @property
    def is_running(self) -> bool:
        """Whether the result has not arrived yet."""
        return not self.result.value.done()


@dataclass(frozen=True, slots=True)
class Later(Generic[K]):
    """Calls that were sent ahead, and whose number is known when the values of `reads` are there.

    `expand` makes the calls of these values. It may raise a WeftlineError: there are none then.
    """

    reads: Mapping[str, ReadValue]
    expand: Callable[[Mapping[str, Any]], Sequence[Planned[K]]]


class Claims(Generic[K]):
    """The planned calls of one run. Each result goes to one request."""

    def __init__(self, planned: Sequence[Planned[K]], later: Sequence[Later[K]] = ()) -> None:
        self.planned = list(planned)
        self._later = list(later)
        # Reentrant: a garbage collection while it is held may end a run, which comes here, too.
        self._lock = RLock()
        self._unknown = list(planned)  # their prompts read values that have not arrived
        self._known: defaultdict[K, deque[Planned[K]]] = defaultdict(deque)

    def claim(self, key: K) -> Planned[K] | None:
        """The first call with this key that no request has claimed, if there is one."""
        with self._lock:
            self._file()
            found = self._known.get(key)
            if not found:
                return None
            planned = found.popleft()
            planned.is_claimed = True
            return planned

    def has(self, key: K) -> bool:
        """Whether a call with this key was sent ahead that no request has claimed."""
        with self._lock:
            self._file()
            return bool(self._known.get(key))

    @property
    def has_left(self) -> bool:
        """Whether there are calls that no request has claimed."""
        return bool(self._later) or not all(planned.is_claimed for planned in self.planned)

    def _file(self) -> None:
        """Index by key the calls whose prompts have become complete."""
        for later in [one for one in self._later if _is_ready(one.reads)]:
            self._later.remove(later)
            made = _expanded(later)
            self.planned += made
            self._unknown += made
        unknown = []
        for planned in self._unknown:
            if not _is_ready(planned.reads):
                unknown.append(planned)
            elif (key := _key(planned)) is not None:
                self._known[key].append(planned)
        self._unknown = unknown


def _is_ready(reads: Mapping[str, ReadValue]) -> bool:
    return all(read.peek() is not None for read in reads.values())


def _expanded(later: Later[K]) -> Sequence[Planned[K]]:
    values = _values(later.reads)
    if values is None:
        return ()
    try:
        return later.expand(values)
    except WeftlineError:
        return ()


def _key(planned: Planned[K]) -> K | None:
    """Return the request's key. It is None if an input has failed: the application then never makes
    the call.
    """
    values = _values(planned.reads)
    return None if values is None else planned.key_of(values)


def _values(reads: Mapping[str, ReadValue]) -> dict[str, Any] | None:
    """The values of what has arrived; None if there is an error among them."""
    values = {}
    for variable, read in reads.items():
        found = read.peek()
        if not isinstance(found, Value):
            return None
        values[variable] = found.value
    return values
