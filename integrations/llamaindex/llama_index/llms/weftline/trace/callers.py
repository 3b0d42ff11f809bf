"""The methods of LlamaIndex around the running code that have no span, found on its call stack.

Such a method is a build or an insertion of an index, or an evaluation of a BatchEvalRunner. A span
inside it is the first that an instrumentation sees. At that time the call stack has the method, its
object and its arguments. This module reads stacks and changes nothing. So another library may
replace the same methods at any time.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from threading import RLock, Thread
from time import sleep
from types import FrameType
from typing import Any, Generic, TypeVar

from weftline.adapters.frames import current_frames

# The methods by their qualified names, with their modules. All of them are public.
METHODS: Mapping[str, str] = {
    "BaseIndex.from_documents": "llama_index.core.indices.base",
    "BaseIndex.build_index_from_nodes": "llama_index.core.indices.base",
    "BaseIndex.insert_nodes": "llama_index.core.indices.base",
    "VectorStoreIndex.build_index_from_nodes": "llama_index.core.indices.vector_store.base",
    "VectorStoreIndex.insert_nodes": "llama_index.core.indices.vector_store.base",
    "VectorStoreIndex.ainsert_nodes": "llama_index.core.indices.vector_store.base",
    "BatchEvalRunner.aevaluate_queries": "llama_index.core.evaluation.batch_runner",
    "BatchEvalRunner.aevaluate_response_strs": "llama_index.core.evaluation.batch_runner",
    "BatchEvalRunner.aevaluate_responses": "llama_index.core.evaluation.batch_runner",
}
# A BatchEvalRunner runs these functions in tasks of their own, and waits for the tasks. The runner
# is on the stack of none of them. They get its semaphore.
WORKERS: Mapping[str, str] = {
    "eval_worker": "llama_index.core.evaluation.batch_runner",
    "eval_response_worker": "llama_index.core.evaluation.batch_runner",
    "response_worker": "llama_index.core.evaluation.batch_runner",
}

WATCH_S = 0.1  # between two looks at the stacks
# A stack that changes while another thread reads it can lack a method that runs. So a method has
# ended when it was missing twice.
MISSES = 2
MAX_METHODS = 1_000

Task = asyncio.Task[Any]
Place = tuple[FrameType, Task | None]
"""The frame of a method, and the task that runs the method if it is a coroutine."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Method:
    """A method that runs: its name, its object or class, and its arguments."""

    name: str
    instance: Any
    arguments: Mapping[str, Any]


@dataclass(eq=False, slots=True)
class _Known(Generic[T]):
    """The item of a method that runs."""

    item: T
    instance: Any
    task: Task | None
    misses: int = 0


class Callers(Generic[T]):
    """An item for each method around running code, from the first span inside it to its end.

    The end is found by a thread, soon after the method has returned. The thread runs only while
    there are items.
    """

    def __init__(self, ended: Callable[[T], None]) -> None:
        """`ended` is called with the item of each method that has ended."""
        self._ended = ended
        self._known: dict[FrameType, _Known[T]] = {}
        # Reentrant: a garbage collection while it is held may end a run, which comes here, too.
        self._lock = RLock()
        self._thread: Thread | None = None

    def __len__(self) -> int:
        return len(self._known)

    def find(self) -> T | None:
        """The item of the innermost method around the running code that has one."""
        if self._known:
            for frame, _ in self._around(sys._getframe(1)):
                if (known := self._known.get(frame)) is not None:
                    return known.item
        return None

    def note(self, make: Callable[[Method], T]) -> list[tuple[Method, T]]:
        """Make items for the methods around the running code that have none, the outermost first.

        Returns them with their items. `make` may call `find`.
        """
        places: list[Place] = []
        for place in self._around(sys._getframe(1)):
            if place[0] in self._known:
                break  # those around it are known, too
            places.append(place)
        noted: list[tuple[Method, T]] = []
        for frame, task in reversed(places):
            if len(self._known) >= MAX_METHODS:
                break  # the calls of this method are runs of their own
            method = _method_of(frame)
            item = make(method)
            self._add(frame, _Known(item, method.instance, task))
            noted.append((method, item))
        return noted

    def _around(self, top: FrameType) -> Iterator[Place]:
        """The methods around the code at the top of a stack, the innermost first."""
        for frame in _stack(top):
            if _is_one_of(METHODS, frame):
                yield frame, _task_of(frame)
            elif _is_one_of(WORKERS, frame):
                yield from self._evaluations(frame.f_locals.get("semaphore"))

    def _evaluations(self, semaphore: object) -> Iterator[Place]:
        """The methods of the runner with this semaphore that wait for the running task.

        If a runner evaluates twice at once, they may be those of its other evaluation.
        """
        with self._lock:
            known = list(self._known.values())
        # All workers have one runner, so only the first of them looks at all tasks.
        found = {one.task: None for one in known if _has(one.instance, semaphore)}
        for task in (*found, *_all_tasks()):
            frames = [
                frame
                for frame in _awaited(task)
                if _is_one_of(METHODS, frame) and _has(frame.f_locals.get("self"), semaphore)
            ]
            if frames:
                yield from ((frame, task) for frame in reversed(frames))
                return

    def _add(self, frame: FrameType, known: _Known[T]) -> None:
        with self._lock:
            self._known[frame] = known
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._watch, name="weftline-callers", daemon=True)
                self._thread.start()

    def _watch(self) -> None:
        while True:
            sleep(WATCH_S)
            for item in self._drop_ended():
                self._ended(item)
            with self._lock:
                if not self._known:
                    self._thread = None
                    return

    def _drop_ended(self) -> list[T]:
        """Forget the methods that have ended. Returns their items, the innermost first."""
        tops = current_frames().values()
        running = {frame for top in tops for frame in _stack(top) if _is_one_of(METHODS, frame)}
        dropped: list[T] = []
        with self._lock:
            for frame, known in reversed(list(self._known.items())):
                runs = frame in running or any(one is frame for one in _awaited(known.task))
                known.misses = 0 if runs else known.misses + 1
                if known.misses == MISSES:
                    del self._known[frame]
                    dropped.append(known.item)
        return dropped


def _stack(top: FrameType) -> Iterator[FrameType]:
    frame: FrameType | None = top
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_one_of(functions: Mapping[str, str], frame: FrameType) -> bool:
    """Whether a frame runs one of these functions, however it is wrapped."""
    module = functions.get(frame.f_code.co_qualname)
    return module is not None and module == frame.f_globals.get("__name__")


def _method_of(frame: FrameType) -> Method:
    given = inspect.getargvalues(frame)
    instance, *names = (*given.args, *filter(None, (given.varargs, given.keywords)))
    arguments = {name: given.locals[name] for name in names if name in given.locals}
    return Method(frame.f_code.co_name, given.locals.get(instance), arguments)


def _task_of(frame: FrameType) -> Task | None:
    """The running task, if it runs the coroutine of this frame."""
    if not frame.f_code.co_flags & inspect.CO_COROUTINE:
        return None
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None  # another library than asyncio runs the coroutine


def _all_tasks() -> Iterator[Task]:
    try:
        yield from asyncio.all_tasks()
    except RuntimeError:
        return  # another library than asyncio runs the coroutine


def _awaited(task: Task | None) -> Iterator[FrameType]:
    """The frames of the coroutines that a task waits in, the outermost first."""
    inner: Any = None if task is None else task.get_coro()
    while inspect.iscoroutine(inner) and inner.cr_frame is not None:
        yield inner.cr_frame
        inner = inner.cr_await


def _has(runner: object, semaphore: object) -> bool:
    return semaphore is not None and getattr(runner, "semaphore", None) is semaphore
