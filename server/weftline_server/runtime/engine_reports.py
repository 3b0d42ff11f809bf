"""What engines report of primitives, as events of sessions; the dispatcher's `Sessions`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

from weftline.contract.errors import EngineFailed
from weftline.contract.errors import from_name as error_named
from weftline_engine import api
from weftline_server.graph.growth import TakesItems
from weftline_server.graph.primitive import Primitive, PrimitiveId
from weftline_server.lowering.kinds.prompt import PromptBody
from weftline_server.lowering.result_values import Transformed
from weftline_server.prompt.answer import CallState
from weftline_server.runtime.containment import Containment
from weftline_server.runtime.early_calls import EarlyCalls
from weftline_server.runtime.early_items import EarlyItems
from weftline_server.runtime.future import Foresight
from weftline_server.runtime.hint_updates import HintUpdates
from weftline_server.runtime.next_turn import NextTurns
from weftline_server.runtime.registry import Registry
from weftline_server.runtime.runners import Runners
from weftline_server.schedule.session_protocol import Outcome, Sent
from weftline_server.session import events as ev
from weftline_server.session.execution import may_restart
from weftline_server.session.session import ServerSession

log = logging.getLogger("weftline.driver")

TURN_ITEMS = 32  # items of a list whose tasks are made in one turn


class EngineReports:
    """Tells each session what has become of its primitives; `apply` does so.

    Engines that report are the dispatcher's, the server itself, and clients that compute a step.
    """

    def __init__(
        self,
        registry: Registry,
        runners: Runners,
        items: EarlyItems,
        calls: EarlyCalls,
        hint_updates: HintUpdates,
        next_turns: NextTurns,
        contained: Containment,
        apply: Callable[[ServerSession, ev.SessionEvent], None],
        clock: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._runners = runners
        self._items = items
        self._calls = calls
        self._hint_updates = hint_updates
        self._next_turns = next_turns
        self._contained = contained
        self._apply = apply
        self._now = clock

    @property
    def outlook(self) -> Foresight:
        """Answers what memory asks about the future of a context."""
        return Foresight(self._registry)

    def restarts(self, id: PrimitiveId) -> bool:
        """Forget the text of a primitive that is to run again; False if a client has some of the
        text."""
        session = self._registry.by_id(id.session)
        if session is None or not may_restart(session.execution, id.primitive):
            return False
        self._runners.prompts.answers.forget(str(id))
        self._apply(session, ev.PrimitiveRestarted(now=self._now(), primitive=id.primitive))
        return True

    def replanned(self, known: Container[str]) -> Iterator[tuple[PrimitiveId, api.Hints]]:
        """The primitives with `known` ops whose hints have changed, with their present hints."""
        return self._hint_updates.drain(known)

    def outcome(self, id: PrimitiveId, outcome: Outcome) -> None:
        """Turn an engine's report into an event of the session."""
        session = self._registry.by_id(id.session)
        if session is not None:
            primitive = session.graph.primitives[id.primitive]
            self._contained.run(session, self.hear, session, primitive, outcome)

    def hear(self, session: ServerSession, primitive: Primitive, outcome: Outcome) -> None:
        """Tell the session what has become of a primitive."""
        match outcome:
            case Sent(engine, at, node, why, admitted):
                event: ev.SessionEvent = ev.PrimitiveSent(
                    now=at,
                    primitive=primitive.id,
                    engine=engine,
                    node=node,
                    why=why,
                    admitted=admitted,
                )
            case api.Part():
                part = self._runners.prompts.part(primitive, outcome, self._now())
                self._told(session, part)
                return
            case api.Items():
                self._items.came(session, primitive, outcome)
                return
            case api.Failed() if self._items.failed(PrimitiveId(session.id, primitive.id)):
                log.debug("early items of primitive %s failed", primitive.id)
                return
            case api.Failed(error=name, message=message, param=param):
                if (ended := self._runners.of(primitive).failed(primitive, outcome)) is not None:
                    self._finish(session, primitive, ended)
                    return
                error = error_named(name, EngineFailed)(message, param=param)
                taken = any(session.variables[var].taken for var in primitive.writes)
                event = ev.PrimitiveFailed(
                    now=self._now(), primitive=primitive.id, error=error, is_taken=taken
                )
            case api.Paused(reason=mark, usage=usage):
                # For the call it has ended: the tool runs in the client, or in another task.
                log.debug("primitive %s paused on %r", primitive.id, mark)
                finished = api.Finished(
                    op=outcome.op,
                    attempt=outcome.attempt,
                    sequence=outcome.sequence,
                    time=outcome.time,
                    reason=api.FinishReason.STOP,
                    usage=usage,
                )
                self._finish(session, primitive, finished)
                return
            case api.Finished():
                self._finish(session, primitive, outcome)
                return
        self._apply(session, event)

    def _finish(self, session: ServerSession, primitive: Primitive, finished: api.Finished) -> None:
        """Make the value, elsewhere if that takes long, and tell the session."""
        finished = self._items.finished(session.id, primitive, finished)
        if isinstance(primitive.body, PromptBody):
            self._read_to_end(session, primitive, primitive.body, finished)
            self._runners.prompts.took(session, primitive, finished.usage, self._now())
        made = self._runners.of(primitive).result(session, primitive, finished)
        takes_items = isinstance(primitive.body, TakesItems) and not primitive.traits.has_prompt
        if isinstance(made, Transformed) and not takes_items:
            self._apply(session, _finished(primitive, finished, made))
            self._next_turns.answered(session, primitive, made.value)
            return

        async def later() -> None:
            value = made if isinstance(made, Transformed) else await made
            if takes_items and isinstance(value.value, list):
                for piece in _pieces(session, primitive.id, value.value, self._now):
                    self._apply(session, piece)
                    await asyncio.sleep(0)
            self._apply(session, _finished(primitive, finished, value))

        self._contained.spawn(session, later())

    def _told(self, session: ServerSession, event: ev.TextGenerated) -> None:
        """More of an output was generated: its readers are told, and the tools that it calls
        start."""
        self._apply(session, event)
        if event.deltas:
            self._calls.came(session, event.primitive, event.deltas)

    def _read_to_end(
        self, session: ServerSession, primitive: Primitive, body: PromptBody, finished: api.Finished
    ) -> None:
        """An answer has ended: the session is told of its last text and of all its calls."""
        if (last := self._runners.prompts.last(primitive, finished)) is not None:
            self._told(session, last)
        if not body.is_read:
            return
        is_cut = finished.reason is api.FinishReason.LENGTH
        state = CallState.CUT if is_cut else CallState.ENDED
        self._calls.ended(session, primitive.id, state)


def _pieces(
    session: ServerSession, primitive: str, items: Sequence[Any], clock: Callable[[], float]
) -> Iterator[ev.ItemsCame]:
    """The new items of a list, as several events: other sessions run between two events. There are
    no events if the list lacks items that came while it was written.
    """
    body = session.graph.primitives[primitive].body
    assert isinstance(body, TakesItems), f"{primitive} takes no items"
    if tuple(items[: len(body.taken)]) != body.taken:
        return
    for offset in range(len(body.taken), len(items), TURN_ITEMS):
        some = tuple(items[offset : offset + TURN_ITEMS])
        yield ev.ItemsCame(now=clock(), primitive=primitive, offset=offset, items=some)


def _finished(
    primitive: Primitive, finished: api.Finished, made: Transformed
) -> ev.PrimitiveFinished:
    """The end of a primitive; a transform's failure is its error."""
    return ev.PrimitiveFinished(
        now=finished.time,
        primitive=primitive.id,
        reason=made.reason or finished.reason,
        usage=finished.usage,
        value=made.value,
        error=made.error,
        transform_s=made.seconds,
    )
