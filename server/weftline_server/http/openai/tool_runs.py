"""Chat completions with `"weftline": {"run_tools": true}`: the server runs its tools between turns.

The response is the last answer. Its `weftline` object has the messages before it: the assistant's
calls, and the tools' results. A stream also tells the client of the calls that it computes itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import asdict, replace
from typing import Any

from fastapi import Request
from starlette.responses import JSONResponse, Response

from weftline.contract.errors import InvalidRequest, WeftlineError
from weftline_engine.api import FinishReason
from weftline_server.http.event_stream import EventStream, sse
from weftline_server.http.openai.provenance import Provenance
from weftline_server.http.openai.replies import CHAT, Reply, usage_body
from weftline_server.http.openai.requests import ChatRequest
from weftline_server.http.openai.runs import Runs
from weftline_server.http.wire import or_disconnect
from weftline_server.observe.cost import Prices
from weftline_server.observe.view import output_step
from weftline_server.runtime.service import ClientCall, Service, Turn
from weftline_server.session.session import Session
from weftline_server.session.task import Step


class ToolRun:
    """One request, and how it becomes a response."""

    def __init__(
        self, service: Service, runs: Runs, tenant: str, body: ChatRequest, prices: Prices
    ) -> None:
        check(body)
        said = body.weftline or Provenance()
        if body.session_id is not None:
            said = replace(said, session_id=body.session_id)
        self._service = service
        self._runs = runs
        self._prices = prices
        self.own = said.session_id is None
        self._turns: list[Turn] = []
        if said.session_id is None:
            self.session: Session = service.open(tenant)
        else:
            self.session = runs.enter(tenant, said.session_id, opens=said.open)
        try:
            [call] = body.calls(self.session)
            self._loop = service.tools.loop(self.session, call, said.client_tools, said.code_tool)
            self._turns = self._loop.turns
            self._reply = Reply.new(CHAT, service.model(body.model).name, None)
        except BaseException:
            self.end()
            raise

    async def whole(self) -> dict[str, Any]:
        """The body of a response that is not streamed."""
        async for _ in self._loop.events(told=False):
            pass
        turn = self._turns[-1]
        choice = self._reply.choice(0, turn.message(), self._step(), None)
        body = self._reply.whole([choice], self.usage())
        return {**body, "weftline": await self._ours()}

    async def events(self, with_usage: bool) -> AsyncGenerator[bytes, None]:
        """The chunks of a streamed response: all that the model says, then its own calls if any."""
        try:
            yield sse(None, self._reply.chunk(0, {"content": ""}, first=True))
            async for said in self._loop.events():
                if isinstance(said, str):
                    yield sse(None, self._reply.chunk(0, {"content": said}))
                else:
                    yield sse(None, {**self._reply.chunk(0, {}), "weftline": self._told(said)})
            last = self._reply.choice(0, self._turns[-1].message(), self._step(), None)
            calls = last["message"].get("tool_calls") or ()
            delta = {"tool_calls": [{**one, "index": at} for at, one in enumerate(calls)]}
            end = self._reply.chunk(0, delta if calls else {}, finish=last["finish_reason"])
            ours = {**await self._ours(), "message": self._turns[-1].message()}
            yield sse(None, {**end, "weftline": ours})
            usage = sse(None, self._reply.usage_chunk(self.usage())) if with_usage else b""
            yield usage + sse(None, "[DONE]")
        except WeftlineError as error:
            yield sse(None, error.to_body())
        finally:
            self.end()

    def usage(self) -> dict[str, Any]:
        """The usage of all turns, and what they cost."""
        steps = (self._step_of(turn.task.writes[0]) for turn in self._turns)
        usages = [one.usage for one in steps if one and one.usage is not None]
        cost = self._prices.of_usages(self._reply.model, usages)
        return {**usage_body(usages, 1), **self._prices.shown(cost)}

    def end(self) -> None:
        """End what still runs, and the session if it is the request's own."""
        if self.own:
            self._service.close(self.session)
            return
        if self.session.ended is None:
            for turn in self._turns:
                for task in (turn.task, *(one.task for one in turn.calls)):
                    if task is not None:
                        self._service.cancel(self.session, task.id)
        self._runs.leave(self.session)

    def _told(self, call: ClientCall) -> dict[str, Any]:
        """What the client reads of a call that it has to compute."""
        return {"session_id": self.session.id, "tool_call": asdict(call)}

    async def _ours(self) -> dict[str, Any]:
        turn = self._turns[-1]
        return {
            "session_id": self.session.id,
            "call_id": turn.task.id,
            "semantic_var_id": turn.task.writes[0],
            "messages": await self._loop.messages(),
        }

    def _step_of(self, variable: str) -> Step | None:
        return output_step(self.session, variable)

    def _step(self) -> Step:
        """The step of the last answer. One that a tool stopped has ended as if by itself."""
        step = self._step_of(self._turns[-1].task.writes[0])
        assert step is not None, "the answer has begun"
        return replace(step, reason=step.reason or FinishReason.STOP)


def check(body: ChatRequest) -> None:
    """Raise InvalidRequest for fields that such a request does not serve."""
    if (body.n or 1) != 1:
        raise InvalidRequest("run_tools gives one choice: leave n out", param="n")
    if body.weftline is not None and body.weftline.client_tools and not body.stream:
        raise InvalidRequest(
            "client_tools need a stream, which tells the client of their calls: set stream",
            param="weftline.client_tools",
        )
    if body.wants_logprobs:
        raise InvalidRequest("run_tools gives no logprobs: leave them out", param="logprobs")


async def respond(
    request: Request,
    service: Service,
    runs: Runs,
    tenant: str,
    body: ChatRequest,
    prices: Prices,
) -> Response:
    """The response to a chat completion whose tools the server runs."""
    body.check()
    run = ToolRun(service, runs, tenant, body, prices)
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        return EventStream(run.events(usage))
    try:
        made = await or_disconnect(request, run.whole())
        runs.responded(run.session)
        return JSONResponse(made)
    finally:
        run.end()
