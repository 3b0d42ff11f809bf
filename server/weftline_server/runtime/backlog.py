"""Performs the actions of a large event in parts, so that other sessions run in between. The event
itself changes its session at once. To close a session of 10,000 calls takes 30,000 actions, and the
last input of 10,000 calls starts them all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from weftline_server.runtime.containment import Containment
from weftline_server.session import events as ev
from weftline_server.session.session import ServerSession

TURN_ACTIONS = 256  # actions that are performed in one turn of the event loop, in 1 to 4 ms
# A started primitive counts as this many: its prompt is rendered in the same turn, in 0.1 ms.
RUN_ACTIONS = 8
FEW_ACTIONS = TURN_ACTIONS // RUN_ACTIONS  # fit in a turn, whatever they are


class Backlog:
    """Performs the actions of every session in their order, in turns that are `contained`."""

    def __init__(
        self, perform: Callable[[ServerSession, ev.Action], None], contained: Containment
    ) -> None:
        self._perform = perform
        self.contained = contained
        self._waiting: dict[str, deque[ev.Action | Callable[[], None]]] = {}

    def add(self, session: ServerSession, actions: Sequence[ev.Action]) -> None:
        """Perform these actions: a few at once, many in turns of their own.

        Of many actions, those that stop a primitive come first, so that engines do not run it
        meanwhile.
        """
        waiting = self._waiting.get(session.id)
        if waiting is None and (len(actions) <= FEW_ACTIONS or _cost(actions) <= TURN_ACTIONS):
            for action in actions:
                self._perform(session, action)
            return
        self._put(session, sorted(actions, key=lambda action: type(action) is not ev.Stop))

    def after(self, session: ServerSession, then: Callable[[], None]) -> None:
        """Call `then` when all actions of the session so far have been performed."""
        if session.id in self._waiting:
            self._put(session, [then])
        else:
            then()

    def _put(self, session: ServerSession, some: Sequence[ev.Action | Callable[[], None]]) -> None:
        waiting = self._waiting.get(session.id)
        if waiting is None:
            waiting = self._waiting[session.id] = deque()
            self.contained.spawn(session, self._work_off(session, waiting))
        waiting.extend(some)

    async def _work_off(
        self, session: ServerSession, waiting: deque[ev.Action | Callable[[], None]]
    ) -> None:
        while waiting:
            self.contained.run(session, self._some, session, waiting)
            await asyncio.sleep(0)
        del self._waiting[session.id]

    def _some(self, session: ServerSession, waiting: deque[ev.Action | Callable[[], None]]) -> None:
        left = TURN_ACTIONS
        while waiting and left > 0:
            one = waiting.popleft()
            if isinstance(one, ev.Action):
                left -= _cost([one])
                self._perform(session, one)
            else:
                one()


def _cost(actions: Sequence[ev.Action]) -> int:
    return sum([RUN_ACTIONS if type(action) is ev.Run else 1 for action in actions])
