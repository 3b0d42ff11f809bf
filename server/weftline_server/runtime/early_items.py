"""Sends the items of a list to a step's engine while the list is still being made (Teola's decode
pipelining and stage decomposition).

The first items open an op, more are fed as they come, and the last close it when the whole value is
there. The step's value is put together from the results of the value's items: an item that was sent
and is not among them costs time, never a wrong value.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from weftline.contract.errors import WeftlineError
from weftline_engine import api
from weftline_server.graph.growth import TakesItems
from weftline_server.graph.primitive import DISTANT, Flow, Primitive, PrimitiveId, Where
from weftline_server.lowering.item_kinds import key_of
from weftline_server.lowering.kinds import item_kind
from weftline_server.lowering.step import step_of
from weftline_server.prompt.prompter import Payload
from weftline_server.runtime.attempts import Attempt
from weftline_server.runtime.known_items import known_items
from weftline_server.runtime.runners import StepRunner
from weftline_server.schedule.dispatcher import Dispatcher
from weftline_server.session import events as ev
from weftline_server.session.session import ServerSession
from weftline_server.session.task import RunState
from weftline_server.session.variable import VariableState

log = logging.getLogger("weftline.driver")

# The graph grows at most this often while a list becomes twice as long. Each growth plans anew what
# gathers all results. With one for each item, a list of 4,000 items that a call writes took 2.8 ms
# an item, and one of 1,000 items 1.7. So an item of a long list starts up to 1/64 of the list late.
MOST_GROWTHS = 64


@dataclass(slots=True)
class _Op:
    """An op that streams: the items that were sent to it, their results so far, and the items of
    the complete value."""

    sent: list[Any] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    wanted: list[Any] | None = None  # None: the value is not complete
    attempt: int = 0
    lost: bool = False  # it failed before its value was complete
    begun: bool = False  # its inputs beside the items are there, or are being made


class EarlyItems:
    """The ops of every session that stream."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        steps: StepRunner,
        clock: Callable[[], float],
        apply: Callable[[ServerSession, ev.SessionEvent], None],
        spawn: Callable[[ServerSession, Coroutine[object, object, None]], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._steps = steps
        self._now = clock
        self._apply = apply
        self._spawn = spawn
        self._ops: dict[PrimitiveId, _Op] = {}

    def advance(self, session: ServerSession, id: str) -> None:
        """Send the items that are new, if the step waits for nothing but items."""
        primitive = session.graph.primitives[id]
        flow = primitive.items
        if flow is None or not flow.streams or not flow.takes:
            return
        if isinstance(primitive.body, TakesItems):
            known = known_items(session, flow.takes, flow.through)
            self._grow(session, primitive, primitive.body, known)
            return
        if not _waits_for_items(session, primitive):
            return
        known = known_items(session, flow.takes, flow.through)
        if primitive.traits.where is not Where.ENGINE:
            self._pass_on(session, primitive, known)
            return
        step = step_of(primitive)
        items = item_kind(step).fed(step, known)
        full = PrimitiveId(session.id, id)
        op = self._ops.setdefault(full, _Op())
        if op.lost or len(items) <= len(op.sent) or items[: len(op.sent)] != op.sent:
            return  # nothing is new, or the text was generated again and says something else
        if not op.sent:
            if not op.begun:
                op.begun = True
                self._spawn(session, self._begin(session, primitive, op))
        elif self._dispatcher.feed(str(full), items[len(op.sent) :], last=False):
            op.sent = items
        else:
            op.lost = True

    async def _begin(self, session: ServerSession, primitive: Primitive, op: _Op) -> None:
        """Open the op with the items that are known when its other inputs have been made.

        The transforms of the other inputs may need a worker. Where a transform fails, the step
        fails with its error once the step's whole input is there.
        """
        try:
            inputs = await self._steps.rest(session, primitive)
        except WeftlineError as error:
            log.debug("no early items for primitive %s: %s", primitive.id, error.type)
            return
        full, flow = PrimitiveId(session.id, primitive.id), primitive.items
        if self._ops.get(full) is not op or not _waits_for_items(session, primitive):
            return  # the whole value came meanwhile, or the step was stopped
        assert flow is not None, "it takes items"
        step, known = step_of(primitive), known_items(session, flow.takes, flow.through)
        op.sent = item_kind(step).fed(step, known)
        if op.sent:
            self._enqueue(session, primitive, op, inputs, is_open=True)
        else:
            op.begun = False  # the text was generated again

    def complete(self, session: ServerSession, primitive: Primitive, payload: Payload) -> None:
        """Send the items of the complete value that were not sent yet."""
        kind, full = item_kind(step_of(primitive)), PrimitiveId(session.id, primitive.id)
        wanted = kind.wanted(payload.inputs)
        op = self._ops.setdefault(full, _Op())
        op.wanted = wanted
        if op.sent and not op.lost:
            sent = {key_of(item) for item in op.sent}
            missing = [item for item in wanted if key_of(item) not in sent]
            if self._dispatcher.feed(str(full), missing, last=True):
                op.sent = op.sent + missing
                return
        if op.sent:
            self._dispatcher.cancel(str(full))
            op.attempt, op.results = op.attempt + 1, []
        op.sent, op.lost = wanted, False
        given = payload.inputs.items()
        inputs = {name: value for name, value in given if name not in kind.whole_inputs}
        self._enqueue(session, primitive, op, inputs, is_open=False)

    def came(self, session: ServerSession, primitive: Primitive, event: api.Items) -> None:
        """Keep the results of some items, and let the next step take them."""
        op = self._ops.get(PrimitiveId(session.id, primitive.id))
        if op is None:
            return
        del op.results[event.offset :]
        op.results += event.values
        items = op.sent[event.offset : len(op.results)]
        kind = item_kind(step_of(primitive))
        values = kind.passed_on(items, event.values)
        self._apply(session, ev.ItemsMade(now=self._now(), primitive=primitive.id, values=values))

    def finished(self, session: str, primitive: Primitive, event: api.Finished) -> api.Finished:
        """The end of an op, with the value of what is wanted if the op has streamed."""
        op = self._ops.pop(PrimitiveId(session, primitive.id), None)
        if op is None:
            return event
        assert op.wanted is not None, "an op is closed with its whole value"
        results = dict(zip(map(key_of, op.sent), op.results, strict=True))
        found = [results[key_of(item)] for item in op.wanted]
        return replace(event, value=item_kind(step_of(primitive)).whole(found))

    def failed(self, id: PrimitiveId) -> bool:
        """Note that an op failed. Return whether that concerns early items only."""
        op = self._ops.get(id)
        if op is None or op.wanted is not None:
            self._ops.pop(id, None)
            return False
        op.lost = True
        return True

    def forget(self, id: PrimitiveId) -> None:
        """The primitive was stopped."""
        self._ops.pop(id, None)

    def _enqueue(
        self,
        session: ServerSession,
        primitive: Primitive,
        op: _Op,
        inputs: dict[str, Any],
        *,
        is_open: bool,
    ) -> None:
        payload = Payload(None, None, inputs={**inputs, "items": op.sent})
        attempt = Attempt(op.attempt, is_open)
        work = self._steps.work(session, primitive, payload, attempt, self._now())
        streaming = replace(work.op, streams=True, open=is_open)
        self._dispatcher.enqueue(replace(work, op=streaming))

    def _pass_on(self, session: ServerSession, primitive: Primitive, lists: Sequence[Any]) -> None:
        """A merge passes documents on as soon as it has them."""
        known = session.variables[primitive.writes[0]].items
        step = step_of(primitive)
        fresh = item_kind(step).so_far(step, lists, known)
        if fresh:
            event = ev.ItemsMade(now=self._now(), primitive=primitive.id, values=fresh)
            self._apply(session, event)

    def _grow(
        self, session: ServerSession, primitive: Primitive, body: TakesItems, known: Sequence[Any]
    ) -> None:
        """Let the graph grow by the items that are new, once they are enough."""
        taken = len(body.taken)
        new = tuple(takewhile(lambda item: item is not None, known[taken:]))
        if len(new) <= taken // MOST_GROWTHS or tuple(known[:taken]) != body.taken:
            return
        if _waits_for_items(session, primitive) and _is_written(session, primitive):
            event = ev.ItemsCame(now=self._now(), primitive=primitive.id, offset=taken, items=new)
            self._apply(session, event)


def _is_written(session: ServerSession, primitive: Primitive) -> bool:
    """Whether a call writes the list. The items that a step reports are results, and its value may
    be another list."""
    assert primitive.items is not None, "it takes items"
    above = session.graph.primitives[session.graph.producer[primitive.items.takes]].items
    return above is not None and bool(above.says or primitive.items.through)


def _waits_for_items(session: ServerSession, primitive: Primitive) -> bool:
    """Whether the primitive waits for its items alone: its other values are ready, and the steps
    before it have ended."""
    if session.primitives[primitive.id].state is not RunState.WAITING:
        return False
    ready = VariableState.READY
    reads = [read for read in primitive.reads if read.flow not in DISTANT | {Flow.ITEMS}]
    return (
        any(read.flow is Flow.ITEMS for read in primitive.reads)
        and all(session.variables[read.variable].state is ready for read in reads)
        and all(session.primitives[one].state is RunState.DONE for one in primitive.after)
    )
