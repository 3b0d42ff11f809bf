"""Model calls that start at the same time inside one run, and travel to the server together.

LangChain runs the program. A call that is alone is an ordinary request, and waits for nothing. A
call whose siblings have started, and are about to call, waits for them a few milliseconds. Then
all of them are one submit, and each one takes its answer from there.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from threading import RLock, get_ident
from typing import Any
from uuid import UUID

import openai
from langchain_core.messages import BaseMessage
from langchain_core.runnables.config import var_child_runnable_config

from langchain_weftline.lower.graph import Draft
from langchain_weftline.lower.prompts import messages_as_turns, text_of
from langchain_weftline.lower.symbols import CannotCompile, Prompt, PromptMessage, Slot
from langchain_weftline.model.answers import PROVIDER, new_variable
from langchain_weftline.model.envelope import Told, told
from langchain_weftline.model.sampling import call_options
from langchain_weftline.model.transport import is_shared
from langchain_weftline.run.prefetch import Ahead, Key, Taken, handlers_of, sent_options, take
from langchain_weftline.run.siblings import Branch, Group, Limits, is_parked
from langchain_weftline.run.supersteps import (
    START,
    Edges,
    edges_of,
    is_resumed,
    sends_in,
    task_of,
    tools_in,
)
from langchain_weftline.trace.audience import Aside
from langchain_weftline.trace.provenance import running
from weftline.adapters import Pieces, RunSession, Server, awaited
from weftline.adapters.early_tools import early_turn

LIMITS = Limits()
# One call gains nothing by a submit.
MIN_CALLS = 2
# The most characters of the prompts in one submit. A server accepts 8 MiB.
MAX_CHARACTERS = 2 << 20
# The most runs that are kept. LangChain never ends some, such as streams of a closed event loop.
MAX_RUNS = 50_000
# The threads of a pool that LangChain makes without `max_concurrency`.
POOL = min(32, (os.cpu_count() or 1) + 4)


@dataclass(eq=False, slots=True)
class Waiting:
    """A call that waits for its siblings. `ahead` gets their submit, or None if there is none."""

    draft: Draft
    key: Key
    server: Server
    session: RunSession | None
    streams: bool
    since: float
    room: float
    ahead: Future[Ahead | None] = field(default_factory=Future)

    @property
    def characters(self) -> int:
        return sum(len(text) for _, text, _ in self.key[0])


class Convoys(Aside):
    """Knows the open runs of a program, and brings their calls together.

    A Convoys object is a callback handler of the program's runs. The runs of one root belong
    together. With `across` all runs of all roots do: they are runs of one chain of one call. As
    these have no edges, their submit is a session of its own.
    """

    ignore_chain = False
    ignore_agent = False  # tools
    ignore_chat_model = False  # their starts, and not each token
    run_inline = True

    def __init__(self, graph: Any = None, *, across: bool = False) -> None:
        self.is_across = across
        self._edges: Edges = {} if graph is None else dict(edges_of(graph))
        self._runs: OrderedDict[UUID, Branch[Waiting]] = OrderedDict()
        self._sent: dict[Group[Waiting], list[Ahead]] = {}
        self._all: Group[Waiting] | None = Group() if across else None
        # Reentrant: a garbage collection while it is held may end a run, which comes here, too.
        self._lock = RLock()

    def on_chain_start(
        self,
        serialized: object,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Expect a call of a run that starts."""
        now, task = time.monotonic(), task_of(tags or (), metadata or {})
        thread = None if _is_on_loop() else get_ident()
        with self._lock:
            above = None if parent_run_id is None else self._runs.get(parent_run_id)
            if above is None:
                run = Branch(run_id, None, None, self._all or Group(), task, thread)
            else:
                run = Branch(run_id, above, above.root or above, above.group, task, thread)
                above.inside += 1
                above.group.forget(above)
                # A graph waits for its tasks, or its caller reads a stream.
                if task is None and thread is not None and above.thread not in (None, thread):
                    above.group.starters[above] = above.thread
            run.group.expect(run, now)
            self._announce(run, inputs, now)
            self._runs[run_id] = run
            if len(self._runs) > MAX_RUNS:
                self._runs.popitem(last=False)

    def on_chain_end(self, outputs: object, *, run_id: UUID, **_: Any) -> None:
        """Expect a call of the run around the one that has ended."""
        now, over = time.monotonic(), []
        with self._lock:
            run = self._runs.pop(run_id, None)
            if run is None:
                return
            _forget(run)
            if (above := run.parent) is not None:
                above.inside -= 1
                if above.inside == 0:
                    above.group.expect(above, now)
                    above.group.starters.pop(above, None)
                _foretell(run, above, outputs, self._edges)
            else:
                over = self._sent.pop(run.group, [])
                self._drop_rest(run)
            is_awaited = bool(run.group.waiting)
        for ahead in over:
            ahead.close()
        if is_awaited:
            self._settle(run.group)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """A run that has failed has ended, too."""
        self.on_chain_end(None, run_id=run_id)

    def on_tool_start(
        self,
        serialized: object,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **_: Any,
    ) -> None:
        """A tool may call a model."""
        self.on_chain_start(None, None, run_id=run_id, parent_run_id=parent_run_id)

    def on_tool_end(self, output: object, *, run_id: UUID, **_: Any) -> None:
        """The run around the tool goes on."""
        self.on_chain_end(None, run_id=run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """A tool that has failed has ended, too."""
        self.on_chain_end(None, run_id=run_id)

    def on_chat_model_start(
        self,
        serialized: object,
        messages: object,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Expect the call of one of our models, whose other handlers may take their time."""
        if (metadata or {}).get("ls_provider") != PROVIDER:
            return
        now = time.monotonic()
        with self._lock:
            run = None if parent_run_id is None else self._runs.get(parent_run_id)
            if run is not None:
                run.calls.append(run_id)
                run.group.forget(run)
                run.group.expect(run_id, now)

    def _announce(self, run: Branch[Waiting], inputs: Any, now: float) -> None:
        """Note which tasks start beside a task, and which start first in a graph."""
        above = run.parent
        if run.task is not None and above is not None:
            if above.due.start(run.task):
                above.group.expect(above.due, now)
            else:
                above.group.forget(above.due)
        # A graph is a root, or a run in the task of a node that is a graph.
        path = () if above is None else above.task.path if above.task is not None else None
        first = None if path is None else self._edges.get((*path, START))
        if first and not is_resumed(inputs):
            run.due.add(None, first, 0)

    def _drop_rest(self, root: Branch[Waiting]) -> None:
        """Forget the runs inside a root that has ended, because LangChain never ends them."""
        if root.inside:
            for run_id in [key for key, run in self._runs.items() if run.root is root]:
                _forget(self._runs.pop(run_id))

    def arrive(self, parent: UUID | None, call: UUID | None) -> Branch[Waiting] | None:
        """Note that the run `parent` makes a call. Returns the run, if it is one of these.

        `call` is the model's own run. LangChain does not tell it to a model that is streamed.
        """
        with self._lock:
            run = None if parent is None else self._runs.get(parent)
            if run is None:
                return None
            run.group.forget(run)
            if run.calls:
                run.group.forget(run.calls.pop(run.calls.index(call) if call in run.calls else 0))
            run.group.arriving += 1
            return run

    def has_company(self, group: Group[Waiting]) -> bool:
        """Whether a call that has arrived has a reason to wait."""
        with self._lock:
            return group.has_company(time.monotonic(), LIMITS, _is_starting(group))

    def seat(self, group: Group[Waiting], call: Waiting | None) -> None:
        """Let an arrived call wait for its siblings; None if it does not wait."""
        with self._lock:
            group.arriving -= 1
            if call is not None:
                group.waiting.append(call)
            is_awaited = bool(group.waiting)
        if is_awaited:
            self._settle(group)

    def wait(self, group: Group[Waiting], call: Waiting) -> Ahead | None:
        """The submit of a waiting call, from a thread. None if the model makes the call itself."""
        try:
            while True:
                try:
                    return call.ahead.result(self._left(group))
                except TimeoutError:
                    self._settle(group)
        finally:
            self._leave(group, call)

    async def await_(self, group: Group[Waiting], call: Waiting) -> Ahead | None:
        """The submit of a waiting call, from a coroutine."""
        try:
            while True:
                try:
                    return await awaited(call.ahead, self._left(group))
                except TimeoutError:
                    self._settle(group)
        finally:
            self._leave(group, call)

    def _left(self, group: Group[Waiting]) -> float:
        with self._lock:
            return group.left(time.monotonic(), LIMITS)

    def _leave(self, group: Group[Waiting], call: Waiting) -> None:
        """Forget a call whose wait was interrupted. The others do not wait for it."""
        with self._lock:
            is_left = call in group.waiting
            if is_left:
                group.waiting.remove(call)
        if is_left:
            self._settle(group)

    def _settle(self, group: Group[Waiting]) -> None:
        """Send the calls that wait for nothing more."""
        with self._lock:
            due = group.take_due(time.monotonic(), LIMITS, _is_starting(group))
        for calls in _together(due):
            ahead = None
            try:
                if len(calls) >= MIN_CALLS:
                    ahead = _submitted(calls)
            except BaseException as error:
                for call in calls:  # each one raises it
                    call.ahead.set_exception(error)
                continue
            if ahead is not None and not self.is_across:
                with self._lock:
                    running = [one for one in self._sent.get(group, ()) if one.is_running]
                    self._sent[group] = [*running, ahead]
            for call in calls:
                call.ahead.set_result(ahead)


def _forget(run: Branch[Waiting]) -> None:
    """Expect nothing more of a run that has ended."""
    for one in (run, *run.calls):
        run.group.forget(one)
    run.group.forget(run.due)
    run.group.starters.pop(run, None)


def _is_starting(group: Group[Waiting]) -> bool:
    """Whether a run that has started others goes on by itself, on another thread than this one."""
    here = get_ident()
    return any(thread != here and not is_parked(thread) for thread in group.starters.values())


def _foretell(run: Branch[Waiting], above: Branch[Waiting], outputs: object, edges: Edges) -> None:
    """Note the tasks that follow when the run of a node ends inside the graph `above`."""
    run.sends = max(run.sends, sends_in(outputs))
    if run.task is None:  # a router's output may be that of a run inside it, too
        above.sends = max(above.sends, run.sends)
    else:
        names = edges.get(run.task.path, frozenset())
        above.due.add(run.task.step + 1, names, run.sends or tools_in(outputs))


def _together(calls: Iterable[Waiting]) -> Iterator[list[Waiting]]:
    """The calls that can be one submit: those of one server and session, up to a size."""
    found: dict[tuple[Server, RunSession | None], list[Waiting]] = {}
    sizes: dict[tuple[Server, RunSession | None], int] = {}
    for call in calls:
        place = call.server, call.session
        sizes[place] = sizes.get(place, 0) + call.characters
        if sizes[place] > MAX_CHARACTERS and place in found:
            yield found.pop(place)
            sizes[place] = call.characters
        found.setdefault(place, []).append(call)
    yield from found.values()


def _submitted(calls: Sequence[Waiting]) -> Ahead:
    drafts = [call.draft for call in calls]
    parts = any(call.streams for call in calls)
    return Ahead(calls[0].server, drafts, parts=parts, joins=calls[0].session)


def travel(
    model: Any,
    messages: Sequence[BaseMessage],
    options: Mapping[str, Any],
    run_manager: Any,
    *,
    streams: bool = False,
) -> Taken | None:
    """The result of this call, if it was sent ahead or travels with its siblings.

    A call on the thread of an event loop does not wait, because the loop's other calls could not
    come.
    """
    taken = take(model, messages, options, run_manager, streams=streams)
    convoys, run = _arrived(run_manager)
    if convoys is None or run is None:
        return taken
    call = None
    try:
        if taken is None and not _is_on_loop() and convoys.has_company(run.group):
            call = _waiting(model, messages, options, run, streams, convoys.is_across)
    finally:
        convoys.seat(run.group, call)
    return taken if call is None else _taken(model, call, convoys.wait(run.group, call))


async def atravel(
    model: Any,
    messages: Sequence[BaseMessage],
    options: Mapping[str, Any],
    run_manager: Any,
    *,
    streams: bool = False,
) -> Taken | None:
    """Like `travel`, for a coroutine."""
    taken = take(model, messages, options, run_manager, streams=streams)
    convoys, run = _arrived(run_manager)
    if convoys is None or run is None:
        return taken
    call = None
    try:
        if taken is None:
            await asyncio.sleep(0)  # tasks that started together come in the same turn of the loop
            if convoys.has_company(run.group):
                call = _waiting(model, messages, options, run, streams, convoys.is_across)
    finally:
        convoys.seat(run.group, call)
    return taken if call is None else _taken(model, call, await convoys.await_(run.group, call))


def _arrived(run_manager: Any) -> tuple[Convoys | None, Branch[Waiting] | None]:
    """The convoys around a call that arrives, and the run that makes it.

    The convoys of a surrounding run come before those across runs.
    """
    found = [one for one in handlers_of(run_manager) if isinstance(one, Convoys)]
    if not found:
        return None, None
    chosen = next((one for one in found if not one.is_across), found[0])
    if run_manager is None:
        return chosen, chosen.arrive(running(), None)
    return chosen, chosen.arrive(run_manager.parent_run_id, run_manager.run_id)


def _waiting(
    model: Any,
    messages: Sequence[BaseMessage],
    options: Mapping[str, Any],
    run: Branch[Waiting],
    streams: bool,
    is_alone: bool,
) -> Waiting | None:
    """The call as one that waits; None if a submit cannot make it."""
    if not is_shared(model) or model.early_tools is not None or early_turn() is not None:
        return None
    try:
        turns = messages_as_turns(list(messages), model)
        asked = call_options(model, sent_options(options))
    except (CannotCompile, openai.APIError):  # the model's own request has the plain error
        return None
    if Prompt(turns).has_half_characters:
        return None
    if streams and (asked.toolbox is not None or asked.form is not None):
        return None  # its stream comes from the model
    said = told(model, messages, run.id)
    key: Key = tuple(text_of(turns)), asked, model.server
    draft = Draft(said.name, _pieced(turns, said), new_variable(), asked)
    room = (var_child_runnable_config.get() or {}).get("max_concurrency") or (
        math.inf if _is_on_loop() else POOL
    )
    session = None if is_alone else said.session
    return Waiting(draft, key, model.server, session, streams, time.monotonic(), room)


def _pieced(turns: Sequence[PromptMessage], said: Told) -> tuple[PromptMessage, ...]:
    """The turns, whose contents show the values that they were made of."""
    return tuple(
        turn if pieces is None else replace(turn, content=tuple(_content(pieces)))
        for turn, pieces in zip(turns, said.messages, strict=True)
    )


def _content(pieces: Pieces) -> Iterator[str | Slot]:
    for piece in pieces:
        if piece.text and piece.name is None and piece.from_var is None:
            yield piece.text
        elif piece.text:
            yield Slot(piece.name or "answer", (piece.text,))


def _taken(model: Any, call: Waiting, ahead: Ahead | None) -> Taken | None:
    return None if ahead is None else ahead.taken(model, call.key)


def _is_on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
