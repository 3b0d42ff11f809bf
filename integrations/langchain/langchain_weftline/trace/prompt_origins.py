"""Which template and values made each prompt, learned from LangChain's callbacks.

A callback handler is called for every prompt. It keeps the prompt's pieces, by weak reference to
the prompt or message, until a ChatWeftline receives the same object. It changes nothing.
"""

from __future__ import annotations

import inspect
import weakref
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from threading import RLock
from typing import Any
from uuid import UUID

from langchain_core.messages import BaseMessage
from langchain_core.prompt_values import ChatPromptValue, PromptValue, StringPromptValue
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tracers.context import register_configure_hook

from langchain_weftline.trace.handlers import OwnHandler
from langchain_weftline.trace.session_trace import TracedSession
from langchain_weftline.trace.template_pieces import by_input, by_template
from langchain_weftline.trace.templates import Templates
from weftline.kit import Piece, Pieces, RunSessions
from weftline.kit.pieces import text_of
from weftline.kit.run_sessions import MAX_NAME, Nested

# The most runs that are kept. LangChain never ends some, such as streams of a closed event loop.
MAX_RUNS = 50_000
MAX_ANCESTORS = 8


class ByIdentity:
    """A map from unhashable objects to values. An entry is removed with its object."""

    def __init__(self) -> None:
        self._items: dict[int, tuple[weakref.ref[Any], Any]] = {}

    def __len__(self) -> int:
        return len(self._items)

    def put(self, key: object, value: Any) -> None:
        id_ = id(key)
        self._items[id_] = weakref.ref(key, lambda ref: self._forget(id_, ref)), value

    def find(self, key: object) -> Any:
        found = self._items.get(id(key))
        return None if found is None or found[0]() is not key else found[1]

    def _forget(self, id_: int, ref: weakref.ref[Any]) -> None:
        found = self._items.get(id_)
        if found is not None and found[0] is ref:  # a new object may have the id by now
            del self._items[id_]


@dataclass(eq=False, slots=True)
class Root:
    """A run that no other known run contains."""

    sessions: RunSessions[TracedSession] = field(default_factory=RunSessions)
    under_way: int = 0  # runs inside it that have not ended, itself included


@dataclass(eq=False, slots=True)
class OpenRun(Nested):
    """A run that has not ended: its name, its input, and the run that contains it."""

    name: str | None
    inputs: Any
    parent: OpenRun | None
    root: Root

    @property
    def application(self) -> str:
        """The name that the user gave to the outermost run around this one, "" without one."""
        *_, top = self.ancestry()
        return given_name(top.name)


def given_name(name: str | None) -> str:
    """The name of a run, or "" where LangChain made the name up of a class."""
    found = (name or "").removeprefix("Compiled")
    return "" if found == "LangGraph" or found.startswith("Runnable") else printable(found)


def printable(name: str) -> str:
    """The name as the server takes it."""
    return "".join(char if char.isprintable() else " " for char in name)[:MAX_NAME]


class _Immediate:
    """A callback whose work is done when the call returns, whether or not the result is awaited.

    LangChain awaits a coroutine function, and runs any other callback in an executor, which takes
    0.1 ms and a thread for each event. So `inspect` must take this object for a coroutine function.
    Up to Python 3.11 `inspect` looks at the function attributes that Cython's functions have, too.
    Later versions look at a mark.
    """

    def __init__(self, work: Callable[..., None]) -> None:
        self._work = work
        self.__name__ = work.__name__
        self.__code__ = _nothing.__code__
        self.__defaults__ = None
        self.__kwdefaults__ = None
        self.__annotations__: dict[str, Any] = {}
        if hasattr(inspect, "markcoroutinefunction"):
            inspect.markcoroutinefunction(self)

    def __call__(self, *args: Any, **kwargs: Any) -> _Done:
        self._work(*args, **kwargs)
        return _DONE


async def _nothing() -> None:
    """Provides a code object with a coroutine's flags."""


class _Done:
    """An awaitable that is done. LangChain would run a coroutine on a new loop, so it is none."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


_DONE = _Done()


class Listener(OwnHandler):
    """Watches chains, prompts, tools and retrievers, and ignores all other events.

    `run_inline` stays off: with it LangChain does not tell other handlers that an async text model
    has started.
    """

    ignore_chain = False
    ignore_agent = False  # tools
    ignore_retriever = False

    def __init__(self) -> None:
        self.pieces = ByIdentity()
        self.runs: OrderedDict[UUID, OpenRun] = OrderedDict()
        self._prompts: OrderedDict[UUID, tuple[object, object]] = OrderedDict()
        self._expected: OrderedDict[UUID, RunSessions[TracedSession]] = OrderedDict()
        self._templates = Templates()
        # While the lock is held, a garbage collection may close a generator of LangChain's in the
        # same thread, and that ends a run here.
        self._lock = RLock()
        for kind in ("chain", "tool", "retriever"):
            start = self._on_chain_start if kind == "chain" else self._on_tool_start
            setattr(self, f"on_{kind}_start", _Immediate(start))
            setattr(self, f"on_{kind}_end", _Immediate(self._on_chain_end))
            setattr(self, f"on_{kind}_error", _Immediate(self._on_chain_error))

    def expect(self, run_id: UUID, sessions: RunSessions[TracedSession]) -> None:
        """Let the run with this id use `sessions`. It has started, or it starts next."""
        with self._lock:
            run = self.runs.get(run_id)
            if run is None:
                _bounded(self._expected, run_id, sessions)
            else:
                run.root.sessions = sessions

    def _root(self, run_id: UUID) -> Root:
        sessions = self._expected.pop(run_id, None)
        return Root() if sessions is None else Root(sessions)

    def _on_chain_start(
        self,
        serialized: object,
        inputs: object,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: Sequence[str] | None = None,
        run_type: str | None = None,
        name: str | None = None,
        **_: Any,
    ) -> None:
        with self._lock:
            if run_type == "prompt":
                _bounded(self._prompts, run_id, (serialized, inputs))
                return
            parent = None if parent_run_id is None else self.runs.get(parent_run_id)
            root = self._root(run_id) if parent is None else parent.root
            run = OpenRun(_name(name, tags or ()), inputs, parent, root)
            root.under_way += 1
            dropped = _bounded(self.runs, run_id, run)
            if dropped is not None:
                dropped.root.under_way -= 1
        if dropped is not None:
            self._end(dropped)

    def _on_tool_start(
        self, serialized: object, given: object, *, inputs: object = None, **about: Any
    ) -> None:
        """A tool or a retriever starts. It may call models, too."""
        name = serialized.get("name") if isinstance(serialized, dict) else None
        about["name"] = about.get("name") or name
        self._on_chain_start(serialized, given if inputs is None else inputs, **about)

    def _on_chain_end(self, outputs: object, *, run_id: UUID, **_: Any) -> None:
        with self._lock:
            prompt = self._prompts.pop(run_id, None)
            run = self.runs.pop(run_id, None)
            if run is not None:
                run.root.under_way -= 1
                if run.parent is None and run.root.under_way:
                    self._drop_rest(run.root)
        if prompt is not None and isinstance(outputs, PromptValue):
            self._note(*prompt, outputs)
        if run is not None:
            self._end(run)

    def _on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self._on_chain_end(None, run_id=run_id)

    def _drop_rest(self, root: Root) -> None:
        """Forget the runs inside a root that has ended, because LangChain never ends them.

        A task that is cancelled while its callbacks run skips the remaining ones.
        """
        for run_id in list(self.runs):
            run = self.runs.get(run_id)
            if run is not None and run.root is root:
                self.runs.pop(run_id, None)

    def _end(self, run: OpenRun) -> None:
        if run.parent is None:
            run.root.sessions.finish()

    def _note(self, serialized: object, inputs: object, made: PromptValue) -> None:
        """Keep the pieces of what a template made of `inputs`."""
        if not isinstance(made, (ChatPromptValue, StringPromptValue)):
            return
        messages = made.to_messages()
        texts = [message.content for message in messages]
        if not all(isinstance(text, str) for text in texts):
            return
        found = self._by_template(serialized, inputs, [str(text) for text in texts])
        if found is None:
            found = [by_input(str(text), inputs) for text in texts]
        if isinstance(made, StringPromptValue):
            self.pieces.put(made, found[0])
            return
        for message, pieces in zip(messages, found, strict=True):
            if self.pieces.find(message) is None:  # otherwise another prompt made it
                self.pieces.put(message, pieces)

    def _by_template(
        self, serialized: object, inputs: object, texts: list[str]
    ) -> list[Pieces] | None:
        template = self._templates.find(serialized)
        if template is None:
            return None
        if isinstance(inputs, dict):
            return by_template(template, inputs, texts)
        names = template.input_variables
        return by_template(template, {names[0]: inputs}, texts) if len(names) == 1 else None

    def run_of(self, run_id: UUID | None) -> OpenRun | None:
        """The run with this id, if it has started and not ended."""
        return None if run_id is None else self.runs.get(run_id)

    def pieces_of(self, message: BaseMessage, run: OpenRun | None) -> Pieces:
        """The pieces of a message whose content is plain text."""
        text = str(message.content)
        known: Pieces | None = self.pieces.find(message)
        if known is not None and text_of(known) == text:
            return known
        for above in () if run is None else list(run.ancestry())[:MAX_ANCESTORS]:
            found = by_input(text, above.inputs)
            if any(piece.name is not None for piece in found):
                return found
        return (Piece(text),)


def _bounded(table: OrderedDict[UUID, Any], key: UUID, value: Any) -> Any:
    """Put `value` under `key`. Returns the oldest entry if that was evicted."""
    table[key] = value
    return table.popitem(last=False)[1] if len(table) > MAX_RUNS else None


# LangChain gives names that begin like these to runs that the user did not name.
_UNNAMED = (
    "Runnable",
    "ChannelWrite",
    "LangGraph",
    "ChatWeftline",
    "check_sync_or_async",
    "<",
    "_",
)
_MAP_KEY = "map:key:"


def _name(name: str | None, tags: Sequence[str]) -> str | None:
    """The name that the user gave this run: its key in a dict of runnables, or its own name."""
    for tag in tags:
        if tag.startswith(_MAP_KEY):
            return tag.removeprefix(_MAP_KEY)
    return None if not name or name.startswith(_UNNAMED) else name


def application_of(run_id: UUID | None, name: str | None = None) -> str:
    """The user's name of the outermost run around a run; `name` is that of a run around which there
    is none."""
    run = LISTENER.run_of(run_id)
    return given_name(name) if run is None else run.application


def running() -> UUID | None:
    """The run around a model call that is streamed. LangChain does not pass it to the model."""
    callbacks = (var_child_runnable_config.get() or {}).get("callbacks")
    return getattr(callbacks, "parent_run_id", None)


LISTENER = Listener()
_current: ContextVar[Listener | None] = ContextVar("weftline_provenance", default=LISTENER)


@cache
def listen() -> None:
    """Make LangChain call the listener for every run from now on."""
    register_configure_hook(_current, inheritable=True)
