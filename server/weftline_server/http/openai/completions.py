"""POST /v1/chat/completions and /v1/completions: each choice is a call of a session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from weftline.contract.errors import WeftlineError
from weftline.contract.protocol import Submit
from weftline_server.graph.primitive import Task
from weftline_server.http.direct import Direct
from weftline_server.http.event_stream import EventStream, sse
from weftline_server.http.openai import tool_runs
from weftline_server.http.openai.provenance import Provenance
from weftline_server.http.openai.replies import (
    CHAT,
    TEXT,
    Reply,
    Shape,
    deltas_of,
    finish_reason,
    logprobs_body,
    usage_body,
)
from weftline_server.http.openai.requests import ChatRequest, CompletionRequest
from weftline_server.http.openai.runs import Runs
from weftline_server.http.openai.surface import Endpoint, check
from weftline_server.http.state import asking, state_of
from weftline_server.http.wire import or_disconnect, read, schema
from weftline_server.lowering.kinds.prompt import call_of
from weftline_server.observe.cost import Prices
from weftline_server.observe.view import output_step
from weftline_server.prompt.answer_parser import AnswerParser, message_of, parser_of
from weftline_server.prompt.thinking_block import Thinking
from weftline_server.runtime.service import Service
from weftline_server.session.origin import name_run
from weftline_server.session.session import Session
from weftline_server.session.task import Step

T = TypeVar("T")

router = APIRouter(prefix="/v1", tags=["openai"], route_class=Direct)


@router.post(
    "/chat/completions",
    openapi_extra=schema(ChatRequest),
    response_model=None,
)
async def chat(request: Request) -> Response:
    """One chat completion, whole or streamed."""
    service, tenant = asking(request)
    body = await read(request, ChatRequest, partial(check, Endpoint.CHAT))
    if body.weftline is not None and body.weftline.run_tools:
        state = state_of(request.app)
        return await tool_runs.respond(request, service, state.runs, tenant, body, state.prices)
    return await _complete(request, service, tenant, body, CHAT)


@router.post(
    "/completions",
    openapi_extra=schema(CompletionRequest),
    response_model=None,
)
async def complete(request: Request) -> Response:
    """One text completion, whole or streamed."""
    service, tenant = asking(request)
    body = await read(request, CompletionRequest, partial(check, Endpoint.TEXT))
    return await _complete(request, service, tenant, body, TEXT)


Body = ChatRequest | CompletionRequest


@dataclass(frozen=True, slots=True)
class Running:
    """A submitted request: a call for each choice, and whether the session is its own.

    A request that names a session leaves it open, and its calls in the session's graph.
    """

    service: Service
    runs: Runs
    session: Session
    tasks: tuple[Task, ...]
    own: bool
    body: Body
    reply: Reply
    prices: Prices

    @property
    def choices(self) -> list[Choice]:
        """The choices of the response, of which nothing has been sent."""
        return [Choice.of(self, index, task) for index, task in enumerate(self.tasks)]

    def usage(self) -> dict[str, Any]:
        """The usage of all choices, which have ended."""
        steps = (output_step(self.session, task.writes[0]) for task in self.tasks)
        usages = [step.usage for step in steps if step is not None and step.usage is not None]
        cost = self.prices.of_usages(self.reply.model, usages)
        return {**usage_body(usages, self.body.n or 1), **self.prices.shown(cost)}

    def end(self) -> None:
        """Cancel the calls that still run, or close the session if it is the request's own."""
        if self.own:
            self.service.close(self.session)
            return
        if self.session.ended is None:
            for task in self.tasks:
                self.service.cancel(self.session, task.id)
        self.runs.leave(self.session)


@dataclass(slots=True)
class Choice:
    """One choice of a response, and how much of it has been sent."""

    running: Running
    index: int
    task: Task
    parser: AnswerParser | None
    tokens: int = 0  # tokens whose log probabilities were sent
    chars: int = 0  # the length of these tokens' text

    @staticmethod
    def of(running: Running, index: int, task: Task) -> Choice:
        """Choice number `index`, which `node` generates."""
        call, parser = call_of(task), None
        model = running.service.model(call.model)
        thinking = Thinking.NONE
        if running.reply.shape.chat:
            thinking = model.prompter.thinking(call.chat_template_kwargs)
        if call.offered_tools or thinking is not Thinking.NONE:
            parser = parser_of(call, f"{task.id}/0", model.tool_format, thinking)
        return Choice(running, index, task, parser)

    @property
    def step(self) -> Step | None:
        """The step that generates the choice; None until it has begun."""
        return output_step(self.running.session, self.task.writes[0])

    async def whole(self) -> dict[str, Any]:
        """The choice once it is complete. Raises the error of its call."""
        running = self.running
        variable = await running.service.get(running.session, self.task.writes[0])
        value = variable.value if call_of(self.task).offered_tools else variable.text
        if self.parser is not None and isinstance(value, str):
            value = message_of(self.parser, value)
        step = self.step
        assert step is not None, "a ready output has a step"
        return running.reply.choice(self.index, value, step, self.logprobs())

    async def chunks(self) -> AsyncIterator[str | dict[str, Any]]:
        """The choice in chunks as it is generated, each JSON or data that becomes JSON."""
        reply = self.running.reply
        yield reply.chunk(self.index, {"content": ""}, first=True)
        plain = self.parser is None and not self.running.body.wants_logprobs
        text_chunk = reply.text_chunk(self.index)
        async for chunk in self.running.service.stream(self.running.session, self.task.writes[0]):
            if plain:
                yield text_chunk(chunk.text)
                continue
            for part in self._parts(chunk.text):
                yield part
        calls = False
        if self.parser is not None:
            for last in deltas_of(self.parser.end()):
                yield reply.chunk(self.index, last)
            calls = self.parser.calls > 0
        step = self.step
        assert step is not None and step.reason is not None, "the stream has ended"
        finish = finish_reason(step.reason, calls)
        yield reply.chunk(self.index, {}, logprobs=self.logprobs(), finish=finish)

    def _parts(self, text: str) -> Iterator[dict[str, Any]]:
        """The chunks for new `text`, of which the first has the new log probabilities."""
        deltas = [{"content": text}]
        if self.parser is not None:
            deltas = deltas_of(self.parser.feed(text))
        logprobs = self.logprobs()
        if logprobs is not None and not deltas:
            deltas = [{}]
        for delta in deltas:
            yield self.running.reply.chunk(self.index, delta, logprobs=logprobs)
            logprobs = None

    def logprobs(self) -> dict[str, Any] | None:
        """The log probabilities of the tokens since the last call of this method.

        None if the request does not ask for them, or if tokens were sent and none has come since.
        """
        if not self.running.body.wants_logprobs:
            return None
        step = self.step
        new = [] if step is None else step.logprobs[self.tokens :]
        if not new and self.tokens:
            return None
        body = logprobs_body(self.running.reply.shape, new, self.chars)
        self.tokens += len(new)
        self.chars += sum(len(token.text) for token in new)
        return body


async def start(
    request: Request, service: Service, tenant: str, body: Body, shape: Shape
) -> Running:
    """Submit the calls of `body`, in a session of the request's own, in the one that it names, or
    in that of its conversation."""
    body.check()
    state = state_of(request.app)
    runs = state.runs
    said = body.weftline or Provenance()
    if body.session_id is not None:
        said = replace(said, session_id=body.session_id)
    name_run(said.run_name)
    runs.close(tenant, said.close)
    found = None
    if said.session_id is None and body.weftline is None and state.conversations is not None:
        found = state.conversations.find(tenant, request.headers, body)
    own = said.session_id is None and found is None
    if found is not None:
        session = found
    elif said.session_id is None:
        session = service.open(tenant, stays=False)
    else:
        session = runs.enter(tenant, said.session_id, opens=said.open)
    try:
        submit = Submit(session_id=session.id, calls=body.calls(session))
        tasks = await service.submit(session, submit, whole=not body.stream)
    except BaseException as error:
        body.name_field(error)
        if own:
            service.close(session)
        else:
            runs.leave(session)
        raise
    ours = None if body.weftline is None else _ids(session, tasks[0])
    reply = Reply.new(shape, service.model(body.model).name, ours)
    return Running(service, runs, session, tasks, own, body, reply, state.prices)


def _ids(session: Session, task: Task) -> dict[str, str]:
    """The ids by which a client can name this call's value later."""
    return {"session_id": session.id, "call_id": task.id, "semantic_var_id": task.writes[0]}


async def _complete(
    request: Request, service: Service, tenant: str, body: Body, shape: Shape
) -> Response:
    """The response to `body`, whole or as a stream."""
    running = await start(request, service, tenant, body, shape)
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        return EventStream(_events(running, usage))
    try:
        reading = asyncio.gather(*(choice.whole() for choice in running.choices))
        choices = await or_disconnect(request, reading)
        running.runs.responded(running.session)
        return JSONResponse(running.reply.whole(choices, running.usage()))
    except WeftlineError as error:
        body.name_field(error)
        raise
    finally:
        running.end()


async def _events(running: Running, with_usage: bool) -> AsyncGenerator[bytes, None]:
    """Chunks as the text is generated. The calls end with the stream, whichever side ends it."""
    try:
        streams = [choice.chunks() for choice in running.choices]
        async with aclosing(_merged(streams)) as chunks:
            async for chunk in chunks:
                yield sse(None, chunk)
                running.runs.responded(running.session)
        usage = b""
        if with_usage:
            usage = sse(None, running.reply.usage_chunk(running.usage()))
        yield usage + sse(None, "[DONE]")
    except WeftlineError as error:
        running.body.name_field(error)
        yield sse(None, error.to_body())
    finally:
        running.end()


async def _merged(streams: Sequence[AsyncIterator[T]]) -> AsyncGenerator[T, None]:
    """The items of all `streams` as they arrive. The first failure of a stream is raised."""
    if len(streams) == 1:
        async for chunk in streams[0]:
            yield chunk
        return
    queue: asyncio.Queue[T | Exception | None] = asyncio.Queue(len(streams))

    async def pump(stream: AsyncIterator[T]) -> None:
        try:
            async for chunk in stream:
                await queue.put(chunk)
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
    try:
        running = len(tasks)
        while running:
            match await queue.get():
                case None:
                    running -= 1
                case Exception() as error:
                    raise error
                case chunk:
                    yield chunk
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
