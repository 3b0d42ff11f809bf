"""Calls that were sent ahead, and how a request of the application finds the equal call."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any, Generic, TypeVar

from weftline.adapters.feed import Result

K = TypeVar("K", bound=Hashable)


@dataclass(eq=False)
class Planned(Generic[K]):
    """A call that was sent ahead, and its result.

    `reads` maps the variables in the call's prompt to their results. `key_of` makes a key from
    their values. Two requests have equal keys only if their prompts and parameters are equal. The
    key is None where the application would fail before it makes the request.
    """

    result: Result
    reads: Mapping[str, Result]
    key_of: Callable[[Mapping[str, Any]], K | None]
    is_claimed: bool = False

    @property
    def is_running(self) -> bool:
        """Whether the result has not arrived yet."""
        return not self.result.value.done()


class Claims(Generic[K]):
    """The planned calls of one run. Each result goes to one request."""

    def __init__(self, planned: Sequence[Planned[K]]) -> None:
        self.planned = tuple(planned)
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

    @property
    def has_left(self) -> bool:
        """Whether there are calls that no request has claimed."""
        return not all(planned.is_claimed for planned in self.planned)

    def _file(self) -> None:
        """Index by key the calls whose prompts have become complete."""
        unknown = []
        for planned in self._unknown:
            if any(not result.value.done() for result in planned.reads.values()):
                unknown.append(planned)
            elif (key := _key(planned)) is not None:
                self._known[key].append(planned)
        self._unknown = unknown


def _key(planned: Planned[K]) -> K | None:
    """Return the request's key. It is None if an input has failed: the application then never makes
    the call.
    """
    values = {}
    for variable, result in planned.reads.items():
        if result.value.cancelled() or result.value.exception() is not None:
            return None
        values[variable] = result.value.result().value
    return planned.key_of(values)
