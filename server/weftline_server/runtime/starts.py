"""Starts the primitives whose inputs are ready: each is prepared, charged, and sent on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

from weftline.contract.errors import WeftlineError
from weftline_server.graph.primitive import Primitive, PrimitiveId, Where
from weftline_server.journal.journal import Journal
from weftline_server.lowering.kinds.agent import AgentBegin
from weftline_server.lowering.kinds.prompt import PromptBody
from weftline_server.prompt.prompter import Payload
from weftline_server.runtime.attempts import Attempt
from weftline_server.runtime.containment import Containment
from weftline_server.runtime.early_calls import EarlyCalls
from weftline_server.runtime.early_fill import EarlyFill
from weftline_server.runtime.early_items import EarlyItems
from weftline_server.runtime.engineless_runner import EnginelessRunner
from weftline_server.runtime.runners import Runners
from weftline_server.schedule.dispatcher import Dispatcher
from weftline_server.session import events as ev
from weftline_server.session.resumption import runs_once
from weftline_server.session.session import ServerSession

TURN_CALLS = 16  # short prompts that are tokenised in one turn of the loop, in about 3 ms


class Starts:
    """The primitives that are due, of every session.

    All that become due in one turn of the event loop start in one callback of the next turn. A task
    for each took a tenth of the server's time for a call. Only what has to wait gets a task.
    """

    def __init__(
        self,
        runners: Runners,
        dispatcher: Dispatcher,
        engineless: EnginelessRunner,
        prompts: EarlyFill,
        items: EarlyItems,
        calls: EarlyCalls,
        journal: Journal | None,
        contained: Containment,
        apply: Callable[[ServerSession, ev.SessionEvent], None],
        clock: Callable[[], float],
    ) -> None:
        self._runners = runners
        self._dispatcher = dispatcher
        self._engineless = engineless
        self._prompts = prompts
        self._items = items
        self._calls = calls
        self._journal = journal
        self._contained = contained
        self._apply = apply
        self._now = clock
        self._due: list[tuple[ServerSession, str]] = []
        self._prepared: dict[PrimitiveId, Payload] = {}

    async def prepare(
        self, session: ServerSession, primitives: Sequence[Primitive]
    ) -> Sequence[PrimitiveId]:
        """Tokenise the constant prompts among primitives that are to enter the session, and keep
        them until they are due or forgotten. Raises what their rendering raises.

        The prompt of a turn that an agent begins with is kept under the id of the begin.
        """
        found: dict[PrimitiveId, Payload] = {}
        for primitive in primitives:
            prompt = _begun(primitive) or primitive
            if isinstance(prompt.body, PromptBody) and prompt.body.is_constant:
                made = self._runners.prompts.prepare(session, prompt)
                payload = made if isinstance(made, Payload) else await made
                found[PrimitiveId(session.id, primitive.id)] = payload
                if len(found) % TURN_CALLS == 0:
                    await asyncio.sleep(0)
        self._prepared |= found
        return tuple(found)

    def forget(self, id: PrimitiveId) -> None:
        """The primitive will not start."""
        self._prepared.pop(id, None)

    def soon(self, session: ServerSession, primitive: str) -> None:
        """Start the primitive in the next turn of the event loop."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._start_due)
        self._due.append((session, primitive))

    def _start_due(self) -> None:
        due, self._due = self._due, []
        for session, primitive in due:
            self._contained.run(session, self._start, session, primitive)

    def _start(self, session: ServerSession, id: str) -> None:
        primitive = session.graph.primitives[id]
        payload = self._prepared.pop(PrimitiveId(session.id, id), None)
        if payload is not None and (turn := _begun(primitive)) is not None:
            self._prepared[PrimitiveId(session.id, turn.id)] = payload  # it starts at once
            payload = None
        try:
            made = payload or self._runners.of(primitive).prepare(session, primitive)
        except WeftlineError as error:
            self._fail(session, primitive, error)
            return
        if isinstance(made, Payload):
            self._charge(session, primitive, made)
        else:
            self._contained.spawn(session, self._when_made(session, primitive, made))

    async def _when_made(
        self,
        session: ServerSession,
        primitive: Primitive,
        making: Coroutine[object, object, Payload],
    ) -> None:
        try:
            payload = await making
        except WeftlineError as error:
            self._fail(session, primitive, error)
        else:
            self._charge(session, primitive, payload)

    def _charge(self, session: ServerSession, primitive: Primitive, payload: Payload) -> None:
        """Charge the session, and go on with the primitive if it has the budget."""
        tokens = self._runners.of(primitive).charge(primitive, payload)
        charged = ev.PrimitivePrepared(now=self._now(), primitive=primitive.id, tokens=tokens)
        self._apply(session, charged)
        if not session.primitives[primitive.id].live:
            return  # cancelled while it was being tokenised, or over its budget
        if primitive.traits.where is not Where.ENGINE:
            self._engineless.start(session, primitive)
        elif primitive.items is not None and primitive.items.streams:
            self._items.complete(session, primitive, payload)
        elif self._journal is not None and runs_once(session.execution, primitive.id):
            begun = self._journal.begin(session, primitive.id)
            self._contained.spawn(session, self._when_begun(session, primitive, payload, begun))
        else:
            self._enqueue(session, primitive, payload)

    async def _when_begun(
        self,
        session: ServerSession,
        primitive: Primitive,
        payload: Payload,
        begun: Coroutine[object, object, None],
    ) -> None:
        """Queue a primitive that must not run twice once its beginning is on disk, which may be
        when a store that is away is back.
        """
        try:
            await begun
        except WeftlineError as error:
            self._fail(session, primitive, error)
            return
        if session.primitives[primitive.id].live:
            self._enqueue(session, primitive, payload)

    def _enqueue(self, session: ServerSession, primitive: Primitive, payload: Payload) -> None:
        id = PrimitiveId(session.id, primitive.id)
        number = self._prompts.complete(id, payload)
        if number is None:
            return
        runner = self._runners.of(primitive)
        work = runner.work(session, primitive, payload, Attempt(number), self._now())
        self._dispatcher.enqueue(work)
        if work.op.open:
            self._calls.opened(id)

    def _fail(self, session: ServerSession, primitive: Primitive, error: WeftlineError) -> None:
        self._apply(
            session, ev.PrimitiveFailed(now=self._now(), primitive=primitive.id, error=error)
        )


def _begun(primitive: Primitive) -> Primitive | None:
    """The first turn of the agent that the primitive begins; None of any other primitive."""
    return primitive.body.turn.primitives[0] if isinstance(primitive.body, AgentBegin) else None
