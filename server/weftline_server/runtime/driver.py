"""The thin asyncio place around sessions: performs their actions and tells them what came of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from weftline.errors import EngineFailed, WeftlineError
from weftline.errors import from_name as error_named
from weftline.protocol import Submit
from weftline_engine import api
from weftline_server.graph.graph import Node
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.lowering.call import (
    asked,
    finish,
    is_constant,
    is_large,
    node_of,
    parts_before,
    prefixes,
    sampling_params,
    token_logprobs,
    transformed,
    verified,
)
from weftline_server.prompt.prompter import Payload, Prompter
from weftline_server.runtime.advice import Replanned, hints
from weftline_server.runtime.containment import Containment
from weftline_server.runtime.early_fill import EarlyFill
from weftline_server.runtime.future import want
from weftline_server.runtime.observer import CallObserver
from weftline_server.runtime.readers import Readers
from weftline_server.runtime.registry import Registry
from weftline_server.runtime.tokenising import tokenised
from weftline_server.schedule.dispatcher import Dispatcher
from weftline_server.schedule.engines.slot import Work
from weftline_server.schedule.memory.keeper import Want
from weftline_server.schedule.sessions import Outcome, Sent
from weftline_server.session import events as ev
from weftline_server.session.session import Session

log = logging.getLogger("weftline.driver")

TURN_CALLS = 16  # short prompts that are tokenised in one turn of the loop, in about 3 ms


class Driver:
    """Runs every session of this server on `dispatcher`'s engines, and is its `Sessions`."""

    def __init__(
        self,
        registry: Registry,
        dispatcher: Dispatcher,
        without: frozenset[str] = frozenset(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.registry = registry
        self._now = clock
        self.dispatcher = dispatcher
        self.early = EarlyFill(self._work)
        self.early.dispatcher = dispatcher
        self._affinity = "affinity" not in without
        self._fills_early = "prefill_early" not in without
        self._by_id: dict[str, Session] = {}
        self._prepared: dict[PrimitiveId, Payload] = {}
        self.readers = Readers(self._apply, clock)
        self._contained = Containment(self.close)
        self._replanned = Replanned(self._contained)
        self.observers: tuple[CallObserver, ...] = ()

    def open(self, tenant: str, *, stays: bool = True) -> Session:
        """A new session of `tenant`, which `stays` open for calls that are not known yet. Raises
        Overloaded at the registry's limit."""
        session = self.registry.open(tenant, self._now())
        session.stays = stays
        self._by_id[session.id] = session
        return session

    def close(self, session: Session, reason: str = "the session was closed") -> None:
        """Cancel what the session still runs, and forget it."""
        try:
            self._apply(session, ev.SessionClosed(now=self._now(), reason=reason))
        finally:
            self.registry.forget(session)
            self._by_id.pop(session.id, None)
            self.dispatcher.forget(session.id)

    def sweep(self) -> None:
        """Close the sessions that nobody has used for the registry's idle time."""
        for session in self.registry.idle(self._now()):
            self.close(session, "the session expired: nobody used it")
        for session in self.registry.aged(self._now()):
            self.close(session, "the session expired: it used up its budget of seconds")

    async def submit(self, session: Session, submit: Submit) -> tuple[Node, ...]:
        """Take all calls of `submit`, or raise and leave the session as it was."""
        if not submit.calls:
            return ()  # it only reads
        self.registry.admit(self.dispatcher.queued)
        # The model is decided here, so that the graph names it and equal prompts hash alike.
        nodes = tuple(
            node_of(replace(verified(session, call), model=self.dispatcher.model(call.model)))
            for call in submit.calls
        )
        session.check(nodes)
        prepared: dict[PrimitiveId, Payload] = {}
        for node in nodes:
            assert node.call.model is not None
            if is_constant(node):
                prompter = self.dispatcher.prompter(node.call.model)
                payload = await tokenised(prompter, parts_before(session, node, 0))
                prepared[PrimitiveId(session.id, node.id, 0)] = payload
                if len(prepared) % TURN_CALLS == 0:
                    await asyncio.sleep(0)
        self._prepared |= prepared
        try:
            self._apply(
                session,
                ev.CallsSubmitted(now=self._now(), nodes=nodes, detach=submit.detach),
            )
        finally:
            for id in prepared:
                run = session.calls.get(id.call)
                if run is None or not run.live:  # refused, or ended at once: it will not be run
                    self._prepared.pop(id, None)
        return nodes

    def set(self, session: Session, variable: str, value: Any) -> None:
        """Give an empty variable its value. Raises AlreadySet."""
        self._apply(session, ev.VariableSet(now=self._now(), variable=variable, value=value))

    def cancel_variable(self, session: Session, variable: str) -> None:
        """Cancel the call that makes the variable, and all below it. Raises UnknownVariable."""
        self._apply(session, ev.VariableCancelled(now=self._now(), variable=variable))

    def cancel(self, session: Session, call: str) -> None:
        """Cancel the call and all below it. Raises UnknownCall."""
        self._apply(session, ev.CallCancelled(now=self._now(), call=call))

    def _apply(self, session: Session, event: ev.SessionEvent) -> None:
        session.touched = event.now
        for action in session.handle(event):
            match action:
                case ev.Notify(variable):
                    self.readers.wake(session, variable)
                case ev.Run(call, index):
                    self._contained.spawn(session, self._run(session, call, index))
                case ev.Fill(call, index) if self._may_fill(session, call, index):
                    self._contained.spawn(session, self._fill(session, call, index))
                case ev.Stop(call, index):
                    id = PrimitiveId(session.id, call, index)
                    self._prepared.pop(id, None)
                    self.early.forget(id)
                    self.dispatcher.cancel(str(id))
        self._replanned.note(session)
        if session.ended:
            ended, session.ended = session.ended, []
            for run in ended:
                for observer in self.observers:
                    observer.call_ended(session, run)

    async def _run(self, session: Session, call: str, index: int) -> None:
        """Render, tokenise and queue one primitive, or tell the session why that cannot be done."""
        id = PrimitiveId(session.id, call, index)
        run = session.calls[call]
        try:
            model = self.dispatcher.model(run.node.call.model)
            payload = self._prepared.pop(id, None)
            if payload is None:
                prompter = self.dispatcher.prompter(model)
                payload = await tokenised(prompter, parts_before(session, run.node, index))
            session.spent.take_tokens(payload.size + asked(run.node.outputs[index]))
        except WeftlineError as error:
            failed = ev.PrimitiveFailed(now=self._now(), call=call, index=index, error=error)
            self._apply(session, failed)
            return
        if not run.live or run.index != index:
            return  # cancelled while it was being tokenised
        attempt = self.early.complete(id, payload)
        if attempt is not None:
            self.dispatcher.enqueue(self._work(session, id, payload, False, attempt))

    def _may_fill(self, session: Session, call: str, index: int) -> bool:
        id = PrimitiveId(session.id, call, index)
        return self._fills_early and self.early.may_advance(session, id)

    async def _fill(self, session: Session, call: str, index: int) -> None:
        """Send what is known of a prompt; what is wrong with it shows when it is run."""
        try:
            await self.early.advance(session, PrimitiveId(session.id, call, index))
        except WeftlineError as error:
            log.debug("no early fill for call %s: %s", call, error.type)

    def _work(
        self, session: Session, id: PrimitiveId, payload: Payload, is_open: bool, attempt: int
    ) -> Work:
        run = session.calls[id.call]
        model = self.dispatcher.model(run.node.call.model)
        prompt_tokens = 0 if is_open else payload.size
        sampling = sampling_params(
            run.node.call,
            run.node.outputs[id.index],
            prompt_tokens,
            self.dispatcher.prompter(model),
        )
        salt = self.registry.salt(session.tenant)
        op = api.Op(
            id=str(id),
            attempt=attempt,
            kind=api.Kind.GENERATE,
            context=str(id),
            tokens=payload.tokens,
            text=payload.text,
            messages=payload.messages,
            sampling=sampling,
            salt=salt,
            open=is_open,
            hints=hints(session, id.call),
        )
        queued = self._now() if is_open else run.steps[-1].queued
        size = payload.size + sampling.max_tokens
        shared = prefixes(payload.tokens, salt) if self._affinity else ()
        return Work(id, model, op, queued, size, shared, session.stays)

    def _prompter(self, session: Session, id: PrimitiveId) -> Prompter:
        model = session.calls[id.call].node.call.model
        return self.dispatcher.prompter(self.dispatcher.model(model))

    def want(self, id: PrimitiveId) -> Want | None:
        """Return who will read the context that a finished output has left."""
        session = self._by_id.get(id.session)
        return None if session is None else want(session, id)

    def goes_on(self, application: str) -> bool:
        """Return whether a call of the session is on an engine or on its way to one."""
        found = self._by_id.get(application)
        return found is not None and found.under_way > 0

    def replanned(self) -> Iterator[tuple[PrimitiveId, api.Hints]]:
        """Return the hints of the waiting primitives whose plan has changed."""
        return self._replanned.take()

    def outcome(self, id: PrimitiveId, outcome: Outcome) -> None:
        """Turn what an engine says into what a session understands."""
        session = self._by_id.get(id.session)
        if session is not None:
            with self._contained.inside(session):
                self._hear(session, id, outcome)

    def _hear(self, session: Session, id: PrimitiveId, outcome: Outcome) -> None:
        now, call, index = self._now(), id.call, id.index
        match outcome:
            case Sent(engine, at, node):
                event: ev.SessionEvent = ev.PrimitiveSent(
                    now=at, call=call, index=index, engine=engine, node=node
                )
            case api.Part():
                prompter = self._prompter(session, id)
                logprobs = token_logprobs(outcome, prompter)
                event = ev.TextGenerated(
                    now=now, call=call, index=index, text=outcome.text, logprobs=logprobs
                )
            case api.Failed(error=name, message=message):
                error = error_named(name, EngineFailed)(message)
                event = ev.PrimitiveFailed(now=now, call=call, index=index, error=error)
            case api.Finished():
                self._finish(session, id, outcome)
                return
            case api.Paused():
                raise AssertionError("no session sends an op that may pause")
        self._tell(session, event)

    def _tell(self, session: Session, event: ev.SessionEvent) -> None:
        """What an engine did: only clients keep a session alive."""
        touched = session.touched
        self._apply(session, event)
        session.touched = touched

    def _finish(self, session: Session, id: PrimitiveId, finished: api.Finished) -> None:
        """Transform an output's text, if it is long in another thread, and tell the session."""
        node = session.calls[id.call].node
        text = session.variables[node.writes[id.index]].text
        work = partial(transformed, node, id, text, self._prompter(session, id).tool_format)

        async def elsewhere() -> None:
            made = await asyncio.get_running_loop().run_in_executor(None, work)
            self._tell(session, finish(id, finished, made))

        if is_large(node.outputs[id.index].transforms, text):
            self._contained.spawn(session, elsewhere())
        else:
            self._tell(session, finish(id, finished, work()))

    async def shut_down(self) -> None:
        """Close every session and wait for the tasks that this leaves."""
        for session in list(self._by_id.values()):
            self.close(session, "the server is shutting down")
        await self._contained.settle()
