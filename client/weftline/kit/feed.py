"""The feed of a run: submits its calls, and receives their values as the server pushes them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

from weftline.contract.errors import Cancelled, WeftlineError
from weftline.contract.protocol import Call, SubmitBody
from weftline.contract.steps import Step
from weftline.kit.clients import CLIENTS
from weftline.kit.faults import FOREIGN, as_ours
from weftline.kit.results import Result
from weftline.kit.server import Server
from weftline.sdk.aclient import AsyncSession
from weftline.sdk.background import BACKGROUND, awaited
from weftline.sdk.http import MAX_RETRIES, OnGraph
from weftline.sdk.watch_events import (
    Event,
    GraphEvent,
    Submitted,
    Value,
    VariableFailed,
    VariableText,
)

log = logging.getLogger(__name__)

OnSettled = Callable[[Value | VariableFailed], None]
"""Called on the background loop when a variable is ready or has failed, before its readers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A submit whose session is not known yet.

    `joins` is the id of a session to join; the server opens the session if it is not open. `wait`
    says that a later submit may make what is watched. `follows` says that it is not the first
    submit of its run.
    """

    calls: tuple[Call, ...]
    steps: tuple[Step, ...]
    watch: tuple[str, ...]
    parts: bool
    graph: bool
    close: bool
    wait: bool
    joins: str | None
    follows: bool
    max_retries: int
    run_name: str

    def submit(self, session: str | None) -> SubmitBody:
        return SubmitBody(
            session_id=self.joins or session,
            open=self.joins is not None,
            beats=self.joins is not None,
            calls=self.calls,
            steps=self.steps,
            watch=self.watch,
            parts=self.parts,
            graph=self.graph,
            close=self.close,
            wait=self.wait,
            run_name=self.run_name,
        )


class RunFeed:
    """The submits of one run to one session, and the results of their variables.

    Any thread may call a feed's methods. `results` has the result of each watched variable.
    `session` has the server's id of the session, when the server has sent it. With `joins`, the
    feed uses the session with this id, which the run has chosen, and does not close it. `run_name`
    is what the application calls the run.
    """

    def __init__(
        self,
        server: Server,
        on_settled: OnSettled | None = None,
        joins: str | None = None,
        run_name: str = "",
    ) -> None:
        self.server = server
        self._run_name = run_name
        self._on_settled = on_settled
        self._joins = joins
        self.session: Future[str] = Future()
        self._is_last = False
        self._work: list[Future[None]] = []
        self.results: dict[str, Result] = {}
        self.graph: Future[dict[str, Any]] = Future()

    def send(
        self,
        calls: Sequence[Call],
        watch: Sequence[str],
        *,
        steps: Sequence[Step] = (),
        parts: bool = False,
        graph: bool = False,
        close: bool = False,
        wait: bool = False,
        max_retries: int = MAX_RETRIES,
    ) -> None:
        """Submit `calls` and `steps`, and watch the variables of `watch`.

        `parts` asks for texts as they are generated. `graph` asks for the session's graph at the
        end. `close` says that this is the run's last submit, after which the server closes the
        session. With `wait` another submit may make a watched variable, and arrive later.
        """
        assert not self._is_last, "nothing follows the last submit"
        assert not (close and self._joins), "the run ends its session"
        follows = bool(self._work)
        for variable in watch:
            self.results[variable] = Result()
        self._is_last = close

        draft = _Draft(
            calls=tuple(calls),
            steps=tuple(steps),
            watch=tuple(watch),
            parts=parts,
            graph=graph,
            close=close,
            wait=wait,
            joins=self._joins,
            follows=follows,
            max_retries=max_retries,
            run_name=self._run_name,
        )
        self._work.append(BACKGROUND.start(self._follow(draft)))

    def fetch_graph(self) -> Future[dict[str, Any]]:
        """The session's graph: that at the end of the last submit, or else the present one."""
        return self.graph if self._is_last else BACKGROUND.start(self._fetch_graph())

    def show_graph(self, on_graph: OnGraph) -> None:
        """Call `on_graph` with the graph when the last submit ends.

        If the run ends before its last submit does, nobody calls `on_graph`.
        """
        self.graph.add_done_callback(partial(_pass_on, on_graph))

    def when_opened(self, then: Callable[[str], None]) -> None:
        """Call `then` with the server's id of the session, when the server has sent it."""
        self.session.add_done_callback(
            lambda named: then(named.result()) if named.exception() is None else None
        )

    def when_over(self, then: Callable[[], None]) -> None:
        """Call `then` when the stream of the last submit so far has ended or was cancelled."""
        self._work[-1].add_done_callback(lambda _: then())

    def close(self) -> None:
        """Close the session, or stop reading in a session that this feed has joined.

        The server cancels the calls that nobody else reads.
        """
        if not self._work:
            return
        done = all(result.value.done() for result in self.results.values())
        ends = self._is_last or self._joins is not None
        if ends and done:
            return  # it ends by itself, and its connection can be used again
        is_open = self.session.done()
        if ends:  # first, so that no graph of the calls that are stopped now comes to a reader
            for work in self._work:
                work.cancel()  # closes the connection, which ends the session or its readers
        if self._joins is None and (is_open or not self._is_last):
            # Closing the session is faster than breaking the connection: then the server waits a
            # second for the client to come back.
            BACKGROUND.start(self._end())

    async def _follow(self, draft: _Draft) -> None:
        # If the stream was cancelled or ended early, its readers must not wait forever.
        ended: WeftlineError = Cancelled("the answer ended before this value")
        try:
            session = await self._join(draft) if draft.follows else None
            await self._push(draft, session)
        except FOREIGN as error:  # the readers raise it, because no caller awaits this coroutine
            ended = as_ours(error)
        finally:
            self._fail(draft.watch, ended)
            if draft.close and not self.graph.done():
                self.graph.set_exception(ended)

    async def _join(self, draft: _Draft) -> str | None:
        """Wait for the id of the run's session. None if no earlier submit was accepted.

        With None, `draft` opens the session. Raises the error of the earlier submit if `draft` has
        no calls, because it then only reads variables that the earlier calls would have written.
        """
        while draft.joins is None:
            opening = self.session
            try:
                return await awaited(opening)
            except WeftlineError:
                if not draft.calls:
                    raise
                if self.session is opening:
                    self.session = Future()
                    return None
        return None

    async def _push(self, draft: _Draft, session: str | None) -> None:
        """Submit, and settle the results with the events that the server pushes.

        Raises the error of a refused submit. It is not sent again without the call at fault: the
        reader of each result then makes its own request, as if nothing had been sent.
        """
        began = False
        try:
            client = await CLIENTS.of(self.server)
            pushed = client.watch(draft.submit(session), max_retries=draft.max_retries)
            async with aclosing(pushed) as events:
                async for event in events:
                    began = True
                    self._take(event)
        except FOREIGN as error:
            ours = as_ours(error, began=began)
            raise ours from ours.__cause__

    def _take(self, event: Event) -> None:
        match event:
            case Submitted(session):
                if not self.session.done():
                    self.session.set_result(session)
            case VariableText(variable, text, thoughts):
                self.results[variable].add(text, thoughts)
            case Value(variable, value, facts) if self.session.done():
                told = {**facts, "session_id": self.session.result()}
                self._settle(Value(variable, value, told))
            case Value() | VariableFailed():
                self._settle(event)
            case GraphEvent(graph):
                self.graph.set_result(dict(graph))

    def _settle(self, event: Value | VariableFailed) -> None:
        result = self.results[event.variable]
        if not result.value.done():
            try:
                if self._on_settled is not None:
                    self._on_settled(event)
            except Exception as error:
                event = VariableFailed(event.variable, as_ours(error))
            result.settle(event)

    def _fail(self, variables: Sequence[str], error: WeftlineError) -> None:
        """Fail the variables that have not settled, and the session's id if it is not known."""
        if not self.session.done():
            self.session.set_exception(error)
        for variable in variables:
            self._settle(VariableFailed(variable, error))

    async def _session_client(self) -> AsyncSession:
        return AsyncSession(await CLIENTS.of(self.server), await awaited(self.session))

    async def _fetch_graph(self) -> dict[str, Any]:
        return await (await self._session_client()).graph()

    async def _end(self) -> None:
        try:
            await (await self._session_client()).close()
        except WeftlineError as error:  # the session was never opened, or it expires by itself
            log.debug("a session was left to expire: %s", error)
        except Exception:  # no caller waits for this
            log.warning("a session was left to expire", exc_info=True)


def _pass_on(on_graph: OnGraph, graph: Future[dict[str, Any]]) -> None:
    if graph.exception() is None:
        on_graph(graph.result())
