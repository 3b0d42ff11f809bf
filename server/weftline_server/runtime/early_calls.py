"""Tells a session of the tool calls in an answer while the model writes it (Conveyor).

Each call makes the graph grow; see `weftline_server.lowering.kinds.turn`. This module feeds a tool
that takes its call while the model writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from weftline_engine import api
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.lowering.kinds.turn import TakenCall, TurnBody
from weftline_server.prompt.answer import CallState, WrittenCall
from weftline_server.prompt.tool_parser import Arguments, Called, Delta, Sealed
from weftline_server.runtime.answer_reader import Answers
from weftline_server.schedule.dispatcher import Dispatcher
from weftline_server.session import events as ev
from weftline_server.session.session import ServerSession

Apply = Callable[[ServerSession, ev.SessionEvent], None]


@dataclass(slots=True)
class _Feed:
    """The arguments of an open call, as far as they are written, and how much of them the call's op
    has. The op `is_open` once it is queued.
    """

    text: str = ""
    fed: int = 0
    is_open: bool = False
    is_whole: bool = False


class EarlyCalls:
    """The answers of agents that are written now, and the tools that take their calls meanwhile.

    `cut` ends a turn with what it has said.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        answers: Answers,
        clock: Callable[[], float],
        apply: Apply,
        cut: Callable[[ServerSession, str], None],
        early: bool,
    ) -> None:
        self._dispatcher = dispatcher
        self._answers = answers
        self._now = clock
        self._apply = apply
        self._cut = cut
        self._early = early  # whether tools start before the turn ends
        self._feeds: dict[PrimitiveId, _Feed] = {}  # by tool

    def came(self, session: ServerSession, id: str, deltas: Sequence[Delta]) -> None:
        """Tell the session of the calls that begin and end in a new part of an answer."""
        body = session.graph.primitives[id].body
        if not self._early or not isinstance(body, TurnBody):
            return
        answer = self._answers.of(str(PrimitiveId(session.id, id)))
        for delta in deltas:
            match delta:
                case Called(index, _, name) if body.opens(name):
                    body = self._begun(session, id, index, answer.call(index))
                case Arguments(index, text):
                    self._add(session, body.known(index), text)
                case Sealed(index):
                    if body.starts(answer.call(index).name):
                        body = self._take(session, id, index, [answer.call(index)])
                        self._end(session, body.known(index))
            if not session.primitives[id].live:
                return

    def ended(self, session: ServerSession, id: str, last: CallState) -> None:
        """The answer has ended: tell the session of all its calls. The last one is in this state if
        it is not complete.
        """
        if not isinstance(session.graph.primitives[id].body, TurnBody):
            return
        calls = list(self._answers.of(str(PrimitiveId(session.id, id))).calls())
        count = len(calls)
        for index, call in enumerate(calls):
            if call.state is CallState.OPEN:
                calls[index] = replace(call, state=last if index + 1 == count else CallState.ENDED)
        for one in self._body(session, id).taken:
            if one.index >= count:
                self._take(session, id, one.index, [replace(one.call, state=CallState.GONE)])
        for one in self._take(session, id, 0, calls).taken:
            if one.call.state in (CallState.SEALED, CallState.ENDED):
                self._end(session, one)

    def opened(self, id: PrimitiveId) -> None:
        """The open op of a tool is queued: from now on it can be fed."""
        feed = self._feeds.setdefault(id, _Feed())
        feed.is_open = True
        self._send(id, feed)

    def forget(self, id: PrimitiveId) -> None:
        """The primitive has ended or was stopped."""
        self._feeds.pop(id, None)

    def _begun(self, session: ServerSession, id: str, index: int, call: WrittenCall) -> TurnBody:
        """A call begins whose tool takes it as it is written."""
        begun = replace(call, arguments="", state=CallState.OPEN)
        body = self._body(session, id)
        known = body.known(index)
        if known is None:
            body = self._take(session, id, index, [begun])
            known = body.known(index)
        if known is not None and known.call == begun:
            tool = f"{known.task}/0"
            self._feeds.setdefault(PrimitiveId(session.id, tool), _Feed())
            if not session.primitives[tool].live:  # it ended before the answer was written again
                self._cut(session, id)
        return body

    def _take(
        self, session: ServerSession, id: str, index: int, calls: Sequence[WrittenCall]
    ) -> TurnBody:
        """Tell the session of calls, the first of which has this number, if it knows others."""
        body = self._body(session, id)
        taken = [body.known(at) for at in range(index, index + len(calls))]
        if [None if one is None else one.call for one in taken] == list(calls):
            return body
        items = tuple(call.to_item() for call in calls)
        event = ev.ItemsCame(now=self._now(), primitive=id, offset=index, items=items)
        self._apply(session, event)
        return self._body(session, id)

    def _body(self, session: ServerSession, id: str) -> TurnBody:
        body = session.graph.primitives[id].body
        assert isinstance(body, TurnBody), f"{id} is no turn"
        return body

    def _add(self, session: ServerSession, one: TakenCall | None, text: str) -> None:
        """Feed more arguments to the tool of a call, if it takes them as they are written."""
        feed = self._feed(session, one)
        if feed is not None and one is not None:
            feed.text += text
            self._send(PrimitiveId(session.id, f"{one.task}/0"), feed)

    def _end(self, session: ServerSession, one: TakenCall | None) -> None:
        """A call is complete: feed what its tool has not got."""
        feed = self._feed(session, one)
        if feed is not None and one is not None:
            feed.text, feed.is_whole = one.call.arguments, True
            self._send(PrimitiveId(session.id, f"{one.task}/0"), feed)

    def _feed(self, session: ServerSession, one: TakenCall | None) -> _Feed | None:
        if one is None or not one.task:
            return None
        return self._feeds.get(PrimitiveId(session.id, f"{one.task}/0"))

    def _send(self, id: PrimitiveId, feed: _Feed) -> None:
        if not feed.is_open:
            return
        part: api.Fed = feed.text[feed.fed :]
        if part or feed.is_whole:
            self._dispatcher.feed(str(id), part, feed.is_whole)
            feed.fed = len(feed.text)
        if feed.is_whole:
            del self._feeds[id]
