"""Starts tools while a model still writes its answer, and hands their results over later."""

from __future__ import annotations

import contextvars
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import BoundedSemaphore, Lock, Thread
from typing import Any, Generic, TypeVar

from weftline.contract.arguments import ArgumentReader

log = logging.getLogger(__name__)

T = TypeVar("T")

# Starts a tool for a call's name and arguments; None if the call has to wait for its turn.
Start = Callable[[str, dict[str, Any]], T | None]

# The most results that are kept for their calls. A run that breaks off leaves its results here.
MOST_WAITING = 1024
# The most tools that run before their turn at the same time. Further tools start when the framework
# calls them. Python's own thread pools have at most 32 threads too.
MOST_RUNNING = 32


@dataclass
class _Call:
    """One call of a tool, as far as the model has written it."""

    id: str = ""
    name: str = ""
    is_started: bool = False
    reader: ArgumentReader = field(default_factory=ArgumentReader)


class StartedTools(Generic[T]):
    """The tools that have started before the model's turn ended, by the ids of their calls.

    Each result is given to one call, and only to a call with the same name and arguments. Another
    attempt of the same turn may have written another call with the same id.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, tuple[str, dict[str, Any], T]] = OrderedDict()
        self._lock = Lock()

    def put(self, id: str, name: str, arguments: dict[str, Any], result: T) -> None:
        with self._lock:
            self._waiting[id] = name, arguments, result
            while len(self._waiting) > MOST_WAITING:
                self._waiting.popitem(last=False)

    def claim(self, id: str | None, name: str, arguments: Mapping[str, Any]) -> T | None:
        """The result of the tool that was started for exactly this call, or None."""
        with self._lock:
            found = self._waiting.pop(id or "", None)
        if found is None or found[:2] != (name, arguments):
            return None
        return found[2]


class EarlyTurn(Generic[T]):
    """One turn of a model. The tool of a call starts when the call's arguments are complete.

    A turn receives the parts of calls as they stand in OpenAI's stream. The server sends nothing
    after the end of a call's arguments, so the arguments are complete when their JSON object
    closes.
    """

    def __init__(self, start: Start[T], started: StartedTools[T]) -> None:
        self._start = start
        self._started = started
        self._calls: dict[int, _Call] = {}

    def see(self, index: int, id: str | None, name: str | None, arguments: str | None) -> None:
        """Read a part of call number `index`. If it completes the call, start the call's tool."""
        call = self._calls.setdefault(index, _Call())
        call.id = id or call.id
        call.name += name or ""
        call.reader.feed(arguments or "")
        if not call.reader.is_closed or call.is_started:
            return
        call.is_started = True
        result = self._start(call.name, call.reader.value)
        if result is not None:
            self._started.put(call.id, call.name, call.reader.value, result)


_TURN: ContextVar[EarlyTurn[Any] | None] = ContextVar("weftline_early_turn", default=None)


def early_turn() -> EarlyTurn[Any] | None:
    """The turn that the current model call belongs to, if tools may start early in it."""
    return _TURN.get()


@contextmanager
def as_early_turn(turn: EarlyTurn[Any]) -> Iterator[None]:
    """Model calls inside the block belong to `turn`."""
    token = _TURN.set(turn)
    try:
        yield
    finally:
        _TURN.reset(token)


_running = BoundedSemaphore(MOST_RUNNING)


def in_thread(run: Callable[[], T]) -> Future[T] | None:
    """Start `run` in a thread, with a copy of the context variables.

    Returns None, and starts nothing, if MOST_RUNNING functions are running now.
    """
    if not _running.acquire(blocking=False):
        return None
    context = contextvars.copy_context()
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(context.run(run))
        except BaseException as error:
            # The tool's call raises it. A turn that breaks off makes no such call.
            log.debug("a tool that started early has failed", exc_info=True)
            future.set_exception(error)
        finally:
            _running.release()

    Thread(target=work, name="weftline-early-tool", daemon=True).start()
    return future
