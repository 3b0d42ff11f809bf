"""Chat completions with `"weftline": {"run_tools": true}`: the server runs its tools between turns.

The request is a step of kind `agent`. The response is the last answer. Its `weftline` object
has the messages before it: the assistant's calls, and the tools' results. A stream also tells the
client of the calls that it computes itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from fastapi import Request
from starlette.responses import JSONResponse, Response

from weftline.contract.errors import InvalidRequest, WeftlineError
from weftline_server.http.agent_turns import AgentTurns, ClientCall, Written
from weftline_server.http.event_stream import EventStream, sse
from weftline_server.http.json_bodies import or_disconnect
from weftline_server.http.openai.replies import CHAT
from weftline_server.http.openai.requests import ChatRequest, StreamOptions
from weftline_server.http.openai.running_usage import usage_so_far
from weftline_server.http.openai.submission import Running, start
from weftline_server.prompt.tool_parser import Delta, Said, Thought
from weftline_server.runtime.service import Service

# What a stream shows of an answer, and the name of its delta.
_SHOWN: Mapping[type[Said | Thought], str] = {Thought: "reasoning_content", Said: "content"}


class ToolRun:
    """One request, and how it becomes a response."""

    def __init__(self, running: Running) -> None:
        self.running = running
        [agent] = running.tasks
        self._turns = AgentTurns(running.service, running.session, agent.id)
        self._value = agent.writes[-1]

    async def _read(
        self, shows: Callable[[Sequence[Delta]], bool]
    ) -> AsyncGenerator[Written | ClientCall, None]:
        """What the turns say, until the agent has its value."""
        async with aclosing(self._turns.read(shows)) as parts:
            async for part in parts:
                yield part
        await self.running.service.readers.get(self.running.session, self._value)
        await self.running.keep_thoughts(self._turns.answers)

    async def whole(self) -> dict[str, Any]:
        """The body of a response that is not streamed."""
        async for _ in self._read(lambda deltas: False):
            pass
        reply = self.running.reply
        choice = reply.choice(0, self._turns.message, self._turns.step, None)
        body = reply.whole([choice], await self.running.usage(self._turns.answers))
        return {**body, "weftline": self._ours()}

    async def events(self, options: StreamOptions) -> AsyncGenerator[bytes, None]:
        """The chunks of a streamed response: all that the model says, then its own calls if any.

        The usage counts all turns so far.
        """
        reply, counts = self.running.reply, options.counts
        try:
            yield self._sent(reply.chunk(0, {"content": ""}, first=True), counts)
            async with aclosing(self._read(_is_said)) as parts:
                async for part in parts:
                    for chunk in self._chunks(part):
                        yield self._sent(chunk, counts)
            last = reply.choice(0, self._turns.message, self._turns.step, None)
            calls = last["message"].get("tool_calls") or ()
            delta = {"tool_calls": [{**one, "index": at} for at, one in enumerate(calls)]}
            end = reply.chunk(0, delta if calls else {}, finish=last["finish_reason"])
            ours = {**self._ours(), "message": self._turns.message}
            yield self._sent({**end, "weftline": ours}, counts)
            if options.include_usage:
                yield sse(None, reply.usage_chunk(await self.running.usage(self._turns.answers)))
            yield sse(None, "[DONE]")
        except WeftlineError as error:
            yield sse(None, error.to_body())
        finally:
            self.end()

    def _sent(self, chunk: Mapping[str, Any], counts: bool) -> bytes:
        """A chunk on the wire, with the usage so far if it `counts`."""
        if not counts:
            return sse(None, chunk)
        usage = usage_so_far(self.running.session, self._turns.answers)
        return sse(None, {**chunk, "usage": usage})

    def end(self) -> None:
        """End what still runs, and the session if it is the request's own."""
        self.running.end(self._turns.tasks())

    def _chunks(self, part: Written | ClientCall) -> Iterator[dict[str, Any]]:
        reply, id = self.running.reply, self.running.session.id
        if isinstance(part, ClientCall):
            ours = {"session_id": id, "tool_call": asdict(part)}
            yield {**reply.chunk(0, {}), "weftline": ours}
            return
        for kind, name in _SHOWN.items():
            if text := "".join(one.text for one in part.deltas if isinstance(one, kind)):
                yield reply.chunk(0, {name: text})

    def _ours(self) -> dict[str, Any]:
        """What the response says of the run: its last call, and the messages before that."""
        turn = self._turns.last
        return {
            "session_id": self.running.session.id,
            "call_id": turn.id,
            "semantic_var_id": turn.writes[0],
            "messages": self._turns.earlier,
        }


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
        return EventStream(run.events(body.stream_options or StreamOptions()))
    try:
        made = await or_disconnect(request, run.whole())
        run.running.runs.responded(run.running.session)
        return JSONResponse(made)
    finally:
        run.end()
