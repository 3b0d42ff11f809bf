"""Chat completions with `"weftline": {"run_tools": true}`: the server runs its tools between turns.

The request is the first turn of an agent. The response is the last answer. Its `weftline` object
has the messages before it: the assistant's calls, and the tools' results. A stream also tells the
client of the calls that it computes itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import Request
from starlette.responses import JSONResponse, Response

from weftline.contract.errors import EngineFailed, InvalidRequest, WeftlineError
from weftline.contract.protocol import Submit
from weftline_engine.api import FinishReason
from weftline_server.graph.primitive import Task, Where
from weftline_server.http.event_stream import EventStream, sse
from weftline_server.http.openai.provenance import Provenance
from weftline_server.http.openai.replies import CHAT, Reply, usage_body
from weftline_server.http.openai.requests import ChatRequest
from weftline_server.http.openai.runs import Runs
from weftline_server.http.wire import or_disconnect
from weftline_server.lowering.kinds import KINDS
from weftline_server.lowering.kinds.agent import agent_of
from weftline_server.lowering.kinds.turn import Taken, turn_body, turns
from weftline_server.observe.cost import Prices
from weftline_server.observe.view import output_step
from weftline_server.prompt.tool_parser import Delta, Said
from weftline_server.runtime.service import Service
from weftline_server.session.session import Session
from weftline_server.session.task import Step


@dataclass(slots=True)
class ToolRun:
    """One request, and how it becomes a response. `answers` are its turns that were not written
    again, as far as the response has come.
    """

    service: Service
    runs: Runs
    session: Session
    own: bool
    prices: Prices
    reply: Reply
    first: Task | None = None
    answers: list[Task] = field(default_factory=list)
    told: set[str] = field(default_factory=set)  # the client's calls that it was told of

    @staticmethod
    async def begin(
        service: Service, runs: Runs, tenant: str, body: ChatRequest, prices: Prices
    ) -> ToolRun:
        """Submit the first turn. Raises InvalidRequest, and what a submit raises."""
        check(body)
        said = body.weftline or Provenance()
        if body.session_id is not None:
            said = replace(said, session_id=body.session_id)
        own = said.session_id is None
        if said.session_id is None:
            session = service.open(tenant)
        else:
            session = runs.enter(tenant, said.session_id, opens=said.open)
        reply = Reply.new(CHAT, "", None)
        run = ToolRun(service, runs, session, own, prices, reply)
        try:
            [call] = body.calls(session)
            known = service.tools()
            call, shaped = agent_of(call, said.client_tools, said.code_tool, known, KINDS)
            run.reply = replace(reply, model=service.model(body.model).name)
            submit = Submit(session_id=session.id, calls=(call,))
            [run.first] = await service.submit(session, submit, shaped=shaped)
        except BaseException:
            run.end()
            raise
        return run

    async def whole(self) -> dict[str, Any]:
        """The body of a response that is not streamed."""
        async for _ in self._parts(lambda deltas: False):
            pass
        choice = self.reply.choice(0, self._message(self.answers[-1]), self._step(), None)
        body = self.reply.whole([choice], self.usage())
        return {**body, "weftline": self._ours()}

    async def events(self, with_usage: bool) -> AsyncGenerator[bytes, None]:
        """The chunks of a streamed response: all that the model says, then its own calls if any."""
        try:
            yield sse(None, self.reply.chunk(0, {"content": ""}, first=True))
            async with aclosing(self._parts(_is_said)) as parts:
                async for part in parts:
                    if isinstance(part, str):
                        yield sse(None, self.reply.chunk(0, {"content": part}))
                    else:
                        ours = {"session_id": self.session.id, "tool_call": part}
                        yield sse(None, {**self.reply.chunk(0, {}), "weftline": ours})
            message = self._message(self.answers[-1])
            last = self.reply.choice(0, message, self._step(), None)
            calls = last["message"].get("tool_calls") or ()
            delta = {"tool_calls": [{**one, "index": at} for at, one in enumerate(calls)]}
            end = self.reply.chunk(0, delta if calls else {}, finish=last["finish_reason"])
            yield sse(None, {**end, "weftline": {**self._ours(), "message": message}})
            usage = sse(None, self.reply.usage_chunk(self.usage())) if with_usage else b""
            yield usage + sse(None, "[DONE]")
        except WeftlineError as error:
            yield sse(None, error.to_body())
        finally:
            self.end()

    def usage(self) -> dict[str, Any]:
        """The usage of all turns, and what they cost."""
        steps = (output_step(self.session, turn.writes[0]) for turn in self.answers)
        usages = [one.usage for one in steps if one and one.usage is not None]
        cost = self.prices.of_usages(self.reply.model, usages)
        return {**usage_body(usages, 1), **self.prices.shown(cost)}

    def end(self) -> None:
        """End what still runs, and the session if it is the request's own."""
        if self.own:
            self.service.close(self.session)
            return
        if self.session.ended is None and self.first is not None:
            graph = self.session.graph
            for turn in list(turns(graph, self.first.id)):
                tools = [one.task for one in turn_body(graph, turn.id).taken if one.task]
                for id in (turn.id, *tools):
                    self.service.cancel(self.session, id)
        self.runs.leave(self.session)

    async def _parts(
        self, shows: Callable[[Sequence[Delta]], bool]
    ) -> AsyncGenerator[str | dict[str, str], None]:
        """What the model says, turn by turn, and the calls that the client has to compute.

        The client `shows` some parts of the answers: a turn of which it has one is not written
        again.
        """
        assert self.first is not None, "the first turn was submitted"
        readers, session, id = self.service.readers, self.session, self.first.id
        while id:
            turn = session.graph.tasks[id]
            self.answers.append(turn)
            try:
                async with aclosing(readers.answer(session, turn.writes[0], shows)) as answer:
                    async for deltas in answer:
                        if text := "".join(one.text for one in deltas if isinstance(one, Said)):
                            yield text
                        for due in self._due(turn):
                            yield due
            except EngineFailed:
                if not (id := turn_body(session.graph, turn.id).next):
                    raise
                self.answers.pop()
                continue
            for due in self._due(turn):
                yield due
            id = turn_body(session.graph, turn.id).next

    def _due(self, turn: Task) -> Iterator[dict[str, str]]:
        """The calls that the client computes, and that it was not told of."""
        graph = self.session.graph
        for one in turn_body(graph, turn.id).taken:
            if not one.task or one.task in self.told:
                continue
            if graph.primitives[f"{one.task}/0"].traits.where is Where.CLIENT:
                self.told.add(one.task)
                self.service.readers.shown(self.session, turn.writes[0])
                call = {"id": one.call.id, "name": one.call.name, "arguments": one.call.arguments}
                yield {**call, "variable": one.result}

    def _ours(self) -> dict[str, Any]:
        """What the response says of the run: its last call, and the messages before that."""
        turn = self.answers[-1]
        messages: list[dict[str, Any]] = []
        for one in self.answers[:-1]:
            messages.append(self._message(one))
            messages += map(self._result, turn_body(self.session.graph, one.id).taken)
        return {
            "session_id": self.session.id,
            "call_id": turn.id,
            "semantic_var_id": turn.writes[0],
            "messages": messages,
        }

    def _message(self, turn: Task) -> dict[str, Any]:
        """The answer of a turn as OpenAI's message."""
        value: Any = self.session.variable(turn.writes[0]).value
        return {"role": "assistant", "content": value} if isinstance(value, str) else value

    def _result(self, one: Taken) -> dict[str, Any]:
        """The result of a tool as OpenAI's message."""
        found = self.session.variable(one.result)
        content = str(found.value) if found.error is None else found.error.message
        return {"role": "tool", "tool_call_id": one.call.id, "content": content}

    def _step(self) -> Step:
        """The step of the last answer."""
        step = output_step(self.session, self.answers[-1].writes[0])
        assert step is not None, "the answer has begun"
        return replace(step, reason=step.reason or FinishReason.STOP)


def _is_said(deltas: Sequence[Delta]) -> bool:
    """Whether a part has text that a stream sends."""
    return any(isinstance(one, Said) and one.text for one in deltas)


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
    run = await ToolRun.begin(service, runs, tenant, body, prices)
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        return EventStream(run.events(usage))
    try:
        made = await or_disconnect(request, run.whole())
        runs.responded(run.session)
        return JSONResponse(made)
    finally:
        run.end()
