"""POST /v1/chat/completions and /v1/completions: a session of one call behind OpenAI's API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from weftline.errors import WeftlineError
from weftline.protocol import Submit
from weftline_engine.api import Usage
from weftline_server.graph.primitive import Task
from weftline_server.http.deps import ACCEPTING, DriverDep, Tenant
from weftline_server.http.event_stream import EventStream, sse
from weftline_server.http.openai_answers import (
    CHAT,
    TEXT,
    Answer,
    Shape,
    delta_of,
    finish_reason,
    logprobs_body,
    usage_body,
)
from weftline_server.http.openai_types import ChatRequest, CompletionRequest
from weftline_server.http.provenance import Provenance, Runs
from weftline_server.http.state import state_of
from weftline_server.http.wire import or_disconnect, read, schema
from weftline_server.lowering.call import call_of
from weftline_server.prompt.tool_parser import ToolParser, parser_of
from weftline_server.runtime.driver import Driver
from weftline_server.session.session import Session
from weftline_server.session.task import Step

T = TypeVar("T")

router = APIRouter(prefix="/v1", tags=["openai"])


@router.post(
    "/chat/completions",
    dependencies=[ACCEPTING],
    openapi_extra=schema(ChatRequest),
    response_model=None,
)
async def chat(request: Request, driver: DriverDep, tenant: Tenant) -> Response:
    """One chat completion, whole or streamed."""
    return await _complete(request, driver, tenant, await read(request, ChatRequest), CHAT)


@router.post(
    "/completions",
    dependencies=[ACCEPTING],
    openapi_extra=schema(CompletionRequest),
    response_model=None,
)
async def complete(request: Request, driver: DriverDep, tenant: Tenant) -> Response:
    """One text completion, whole or streamed."""
    return await _complete(request, driver, tenant, await read(request, CompletionRequest), TEXT)


Body = ChatRequest | CompletionRequest


@dataclass(frozen=True, slots=True)
class _Running:
    """A submitted completion: a call for each choice, and whether the session is its own.

    A request that names a session leaves it open, and its calls in the session's graph.
    """

    driver: Driver
    runs: Runs
    session: Session
    tasks: tuple[Task, ...]
    own: bool
    body: Body
    answer: Answer

    @property
    def choices(self) -> list[_Choice]:
        return [_Choice.of(self, index, task) for index, task in enumerate(self.tasks)]

    def usage(self) -> dict[str, Any]:
        """What all choices took; they have ended."""
        steps = (self.session.tasks[task.id].steps[-1] for task in self.tasks)
        usages: list[Usage] = [step.usage for step in steps if step.usage is not None]
        return usage_body(usages, self.body.n or 1)

    def end(self) -> None:
        """Cancel what still runs; forget the session if it was made for it."""
        if self.own:
            self.driver.close(self.session)
            return
        if not self.session.closed:
            for task in self.tasks:
                self.driver.cancel(self.session, task.id)
        self.runs.leave(self.driver, self.session)


@dataclass(slots=True)
class _Choice:
    """One choice of an answer, and how much of it has been streamed."""

    running: _Running
    index: int
    task: Task
    parser: ToolParser | None
    tokens: int = 0  # whose log probabilities were sent
    chars: int = 0  # and their text's length

    @staticmethod
    def of(running: _Running, index: int, task: Task) -> _Choice:
        driver, call = running.driver, call_of(task)
        parser = None
        if call.offered_tools:
            format = driver.dispatcher.prompter(driver.dispatcher.model(call.model)).tool_format
            key = f"{task.id}/0"
            parser = parser_of(call, key, format)
        return _Choice(running, index, task, parser)

    @property
    def step(self) -> Step:
        return self.running.session.tasks[self.task.id].steps[-1]

    async def whole(self) -> dict[str, Any]:
        """The choice once it is there; raises what its call failed with."""
        running = self.running
        variable = await running.driver.readers.get(running.session, self.task.writes[0])
        value = variable.text if self.parser is None else variable.value
        return running.answer.choice(self.index, value, self.step, self.logprobs())

    async def chunks(self) -> AsyncIterator[str | dict[str, Any]]:
        """The choice as it comes, in JSON or in what becomes JSON."""
        answer, running = self.running.answer, self.running
        yield answer.chunk(self.index, {"content": ""}, first=True)
        plain = self.parser is None and not running.body.wants_logprobs
        text_chunk = answer.text_chunk(self.index)
        async for chunk in running.driver.readers.stream(running.session, self.task.writes[0]):
            if plain:
                yield text_chunk(chunk.text)
                continue
            parts = [{"content": chunk.text}]
            if self.parser is not None:
                parts = [delta_of(part) for part in self.parser.feed(chunk.text)]
            logprobs = self.logprobs()
            if logprobs is not None and not parts:
                parts = [{}]
            for part in parts:
                yield answer.chunk(self.index, part, logprobs=logprobs)
                logprobs = None
        calls = False
        if self.parser is not None:
            for last in self.parser.end():
                yield answer.chunk(self.index, delta_of(last))
            calls = self.parser.calls > 0
        reason = self.step.reason
        assert reason is not None, "the stream has ended"
        finish = finish_reason(reason, calls)
        yield answer.chunk(self.index, {}, logprobs=self.logprobs(), finish=finish)

    def logprobs(self) -> dict[str, Any] | None:
        """Those of the tokens that came since the last time; None if nobody asked, or none came."""
        if not self.running.body.wants_logprobs:
            return None
        steps = self.running.session.tasks[self.task.id].steps
        new = steps[-1].logprobs[self.tokens :] if steps else []
        if not new and self.tokens:
            return None
        body = logprobs_body(self.running.answer.shape, new, self.chars)
        self.tokens += len(new)
        self.chars += sum(len(token.text) for token in new)
        return body


async def _start(driver: Driver, runs: Runs, tenant: str, body: Body, shape: Shape) -> _Running:
    body.check()
    said = body.weftline or Provenance()
    if body.session_id is not None:
        said = replace(said, session_id=body.session_id)
    runs.close(driver, tenant, said.close)
    own = said.session_id is None
    session = driver.open(tenant, stays=False) if own else runs.enter(driver, tenant, said)
    try:
        submit = Submit(session_id=session.id, calls=body.calls(session))
        tasks = await driver.submit(session, submit)
    except BaseException:
        if own:
            driver.close(session)
        else:
            runs.leave(driver, session)
        raise
    ours = None if body.weftline is None else _ids(session, tasks[0])
    answer = Answer.new(shape, driver.dispatcher.model(body.model), ours)
    return _Running(driver, runs, session, tasks, own, body, answer)


def _ids(session: Session, task: Task) -> dict[str, str]:
    """What a client needs to know to name this call's answer later."""
    return {"session_id": session.id, "call_id": task.id, "semantic_var_id": task.writes[0]}


async def _complete(
    request: Request, driver: Driver, tenant: str, body: Body, shape: Shape
) -> Response:
    running = await _start(driver, state_of(request.app).runs, tenant, body, shape)
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        return EventStream(_events(running, usage))
    try:
        reading = asyncio.gather(*(choice.whole() for choice in running.choices))
        choices = await or_disconnect(request, reading)
        running.runs.answered(running.session)
        return JSONResponse(running.answer.whole(choices, running.usage()))
    finally:
        running.end()


async def _events(running: _Running, with_usage: bool) -> AsyncGenerator[bytes, None]:
    """Chunks as the text comes; the calls end with the stream, whoever ends it."""
    try:
        streams = [choice.chunks() for choice in running.choices]
        async with aclosing(_merged(streams)) as chunks:
            async for chunk in chunks:
                yield sse(None, chunk)
                running.runs.answered(running.session)
        usage = b""
        if with_usage:
            usage = sse(None, running.answer.usage_chunk(running.usage()))
        yield usage + sse(None, "[DONE]")
    except WeftlineError as error:
        yield sse(None, error.to_body())
    finally:
        running.end()


async def _merged(
    streams: Sequence[AsyncIterator[T]],
) -> AsyncGenerator[T, None]:
    """What all `streams` give, as it comes; the first failure ends it."""
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
