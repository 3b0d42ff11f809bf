"""Chat completions with `"weftline": {"run_tools": true}`: the server runs its tools between turns.

The request is the first turn of an agent. The response is the last answer. Its `weftline` object
has the messages before it: the assistant's calls, and the tools' results. A stream also tells the
client of the calls that it computes itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import Request
from starlette.responses import JSONResponse, Response

from weftline.contract.errors import EngineFailed, InvalidRequest, WeftlineError
from weftline_engine.api import FinishReason
from weftline_server.graph.primitive import Task, Where
from weftline_server.http.event_stream import EventStream, sse
from weftline_server.http.openai.replies import CHAT, Reply
from weftline_server.http.openai.requests import ChatRequest
from weftline_server.http.openai.submission import Running, start
from weftline_server.http.wire import or_disconnect
from weftline_server.lowering.kinds.turn import Taken, turn_body, turns
from weftline_server.observe.view import output_step
from weftline_server.prompt.tool_parser import Delta, Said, Thought
from weftline_server.runtime.service import Service
from weftline_server.session.session import Session
from weftline_server.session.task import Step

# What a stream shows of an answer, and the name of its delta.
_SHOWN: Mapping[type[Said | Thought], str] = {Thought: "reasoning_content", Said: "content"}


@dataclass(frozen=True, slots=True)
class _ClientCall:
    """A call that the client has to compute."""

    body: dict[str, str]


@dataclass(frozen=True, slots=True)
class ToolRun:
    """One request, and how it becomes a response. `answers` are its turns that were not written
    again, as far as the response has come.
    """

    running: Running
    answers: list[Task] = field(default_factory=list)
    told: set[str] = field(default_factory=set)  # the client's calls that it was told of

    @property
    def session(self) -> Session:
        return self.running.session

    @property
    def reply(self) -> Reply:
        """What makes the response's parts."""
        return self.running.reply

    async def whole(self) -> dict[str, Any]:
        """The body of a response that is not streamed."""
        async for _ in self._parts(lambda deltas: False):
            pass
        choice = self.reply.choice(0, self._message(self.answers[-1]), self._step(), None)
        body = self.reply.whole([choice], self.running.usage(self.answers))
        return {**body, "weftline": self._ours()}

    async def events(self, with_usage: bool) -> AsyncGenerator[bytes, None]:
        """The chunks of a streamed response: all that the model says, then its own calls if any."""
        try:
            yield sse(None, self.reply.chunk(0, {"content": ""}, first=True))
            async with aclosing(self._parts(_is_said)) as parts:
                async for part in parts:
                    if isinstance(part, _ClientCall):
                        ours = {"session_id": self.session.id, "tool_call": part.body}
                        yield sse(None, {**self.reply.chunk(0, {}), "weftline": ours})
                    else:
                        yield sse(None, self.reply.chunk(0, part))
            message = self._message(self.answers[-1])
            last = self.reply.choice(0, message, self._step(), None)
            calls = last["message"].get("tool_calls") or ()
            delta = {"tool_calls": [{**one, "index": at} for at, one in enumerate(calls)]}
            end = self.reply.chunk(0, delta if calls else {}, finish=last["finish_reason"])
            yield sse(None, {**end, "weftline": {**self._ours(), "message": message}})
            if with_usage:
                yield sse(None, self.reply.usage_chunk(self.running.usage(self.answers)))
            yield sse(None, "[DONE]")
        except WeftlineError as error:
            yield sse(None, error.to_body())
        finally:
            self.end()

    def end(self) -> None:
        """End what still runs, and the session if it is the request's own."""
        self.running.end(self._tasks())

    def _tasks(self) -> Iterator[str]:
        """The turns and tools of the run so far."""
        graph = self.session.graph
        for turn in list(turns(graph, self.running.tasks[0].id)):
            yield turn.id
            yield from (one.task for one in turn_body(graph, turn.id).taken if one.task)

    async def _parts(
        self, shows: Callable[[Sequence[Delta]], bool]
    ) -> AsyncGenerator[dict[str, str] | _ClientCall, None]:
        """What the model thinks and says, turn by turn, and the calls that the client has to
        compute.

        The client `shows` some parts of the answers: a turn of which it has one is not written
        again.
        """
        readers, session, id = self.running.service.readers, self.session, self.running.tasks[0].id
        while id:
            turn = session.graph.tasks[id]
            self.answers.append(turn)
            try:
                async with aclosing(readers.answer(session, turn.writes[0], shows)) as answer:
                    async for deltas in answer:
                        for kind, name in _SHOWN.items():
                            if text := "".join(one.text for one in deltas if isinstance(one, kind)):
                                yield {name: text}
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

    def _due(self, turn: Task) -> Iterator[_ClientCall]:
        """The calls that the client computes, and that it was not told of."""
        graph = self.session.graph
        for one in turn_body(graph, turn.id).taken:
            if not one.task or one.task in self.told:
                continue
            if graph.primitives[f"{one.task}/0"].traits.where is Where.CLIENT:
                self.told.add(one.task)
                self.running.service.readers.shown(self.session, turn.writes[0])
                call = {"id": one.call.id, "name": one.call.name, "arguments": one.call.arguments}
                yield _ClientCall({**call, "variable": one.result})

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
    return any(isinstance(one, Said | Thought) and one.text for one in deltas)


def check(body: ChatRequest) -> None:
    """Raise InvalidRequest for fields that such a request does not serve."""
    if (body.n or 1) != 1:
        raise InvalidRequest("run_tools gives one choice: leave n out", param="n")
    if body.weftline is not None and body.weftline.client_tools and not body.stream:
        raise InvalidRequest(
            "client_tools need a stream, which tells the client of their calls: set stream",
            param="weftline.client_tools",
        )
    if body.continue_final_message:
        raise InvalidRequest(
            "run_tools begins each answer: leave continue_final_message out",
            param="continue_final_message",
        )
    if body.wants_logprobs:
        raise InvalidRequest("run_tools gives no logprobs: leave them out", param="logprobs")


async def respond(request: Request, service: Service, tenant: str, body: ChatRequest) -> Response:
    """The response to a chat completion whose tools the server runs."""
    check(body)
    run = ToolRun(await start(request, service, tenant, body, CHAT))
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        return EventStream(run.events(usage))
    try:
        made = await or_disconnect(request, run.whole())
        run.running.runs.responded(run.session)
        return JSONResponse(made)
    finally:
        run.end()
