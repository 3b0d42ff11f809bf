"""A request of OpenAI's API as calls of a session: each choice is a call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import Request

from weftline.contract.protocol import Call, SubmitBody
from weftline.contract.steps import AgentStep
from weftline_server.graph.primitive import Task
from weftline_server.http.openai.conversations import Conversations
from weftline_server.http.openai.kept_thoughts import KeptThoughts
from weftline_server.http.openai.provenance import Provenance
from weftline_server.http.openai.replies import Reply, ReplyForm, usage_body
from weftline_server.http.openai.requests import ChatRequest, CompletionRequest
from weftline_server.http.openai.runs import Runs
from weftline_server.http.state import state_of
from weftline_server.lowering.kinds.prompt import call_of, outputs_of
from weftline_server.lowering.result_values import thinking_of
from weftline_server.observe.cost import Prices
from weftline_server.observe.view import output_step
from weftline_server.prompt.template_thoughts import ThoughtForm
from weftline_server.prompt.thinking_block import Thinking, thoughts_of
from weftline_server.runtime.service import Service
from weftline_server.session.origin import name_run
from weftline_server.session.session import ServerSession
from weftline_server.session.task import RunState

Body = ChatRequest | CompletionRequest


@dataclass(frozen=True, slots=True)
class Running:
    """A submitted request: a call for each choice, and whether the session is its own.

    A request that names a session leaves it open, and its calls in the session's graph. `guessed`
    are the conversations among which the session was found, if the request names none. `kept` takes
    the thoughts of the answers that call tools.
    """

    service: Service
    runs: Runs
    session: ServerSession
    tasks: tuple[Task, ...]
    own: bool
    body: Body
    reply: Reply
    prices: Prices
    guessed: Conversations | None = None
    kept: KeptThoughts | None = None

    async def usage(self, tasks: Sequence[Task]) -> dict[str, Any]:
        """The usage of these calls, which have ended."""
        steps = (output_step(self.session, task.writes[0]) for task in tasks)
        usages = [step.usage for step in steps if step is not None and step.usage is not None]
        cost = self.prices.of_usages(self.reply.model, usages)
        body = usage_body(usages, self.body.n or 1)
        if reasoning := await self._reasoning(tasks):
            details = body.get("completion_tokens_details", {})
            body["completion_tokens_details"] = {**details, "reasoning_tokens": reasoning}
        return {**body, **self.prices.shown(cost)}

    async def _reasoning(self, tasks: Sequence[Task]) -> int:
        """The tokens of the thoughts of these calls, 0 where an engine keeps its tokenizer to
        itself."""
        tokens = 0
        loop = asyncio.get_running_loop()
        for task in tasks:
            call, [output] = call_of(task), outputs_of(task)
            prompter = self.service.engines.model(call.model).prompter
            thinking = thinking_of(call, output, prompter)
            if thinking is Thinking.NONE:
                continue
            thoughts = thoughts_of(thinking, self.session.variable(task.writes[0]).text)
            if thoughts:  # tokenising a long block here would hold up the other requests
                tokens += await loop.run_in_executor(None, prompter.count, thoughts)
        return tokens

    async def keep_thoughts(self, answers: Iterable[Task]) -> None:
        """Keep the thoughts of these answers, of which the client has not read the end."""
        for task in () if self.kept is None else answers:
            value = self.session.variable(task.writes[0]).value
            if self.kept is not None and isinstance(value, dict):
                await self.kept.keep(self.session.tenant, task.resource, value)

    def end(self, more: Iterable[str] = ()) -> None:
        """Cancel the calls that still run, and `more` tasks that came of them. Close the session if
        it is the request's own.
        """
        if self.own:
            self.service.close(self.session)
            return
        runs = [self.session.tasks[task.id] for task in self.tasks]
        answered = all(run.state is RunState.DONE for run in runs)
        if self.session.ended is None:
            for id in (*(task.id for task in self.tasks), *more):
                self.service.cancel(self.session, id)
        self.runs.leave(self.session)
        if self.guessed is not None and not answered:
            self.guessed.abandon(self.session)


async def start(
    request: Request,
    service: Service,
    tenant: str,
    body: Body,
    shape: ReplyForm,
    *,
    goes_on: bool = False,
    detach: bool = False,
) -> Running:
    """Submit the calls of `body`, in a session of the request's own, in the one that it names, or
    in that of its conversation, which the client may say `goes_on`.

    With `detach` they run without a request that waits for them. Where sessions are kept on disk,
    the request's own is then one of them."""
    body.check()
    state = state_of(request.app)
    restored, kept = 0, state.thoughts
    if isinstance(body, ChatRequest) and kept is not None:
        served = service.engines.model(body.model)
        if served.prompter.thought_form is ThoughtForm.NONE:
            kept = None
        else:
            body, restored = await kept.restored(tenant, served.name, body)
    runs, said = state.runs, _said(body)
    name_run(said.run_name)
    runs.close(tenant, said.close)
    found, guessed = None, state.conversations
    is_kept = detach and service.registry.journal is not None
    if said.session_id is None and body.weftline is None and guessed is not None and not is_kept:
        found = guessed.find(tenant, request.headers, body, goes_on=goes_on)
    own = said.session_id is None and found is None
    if found is not None:
        session = found
    elif said.session_id is None:
        # The contexts of one that stays wait for the tools.
        session = service.open(tenant, stays=said.run_tools, alias="" if is_kept else None)
    else:
        session = runs.enter(tenant, said.session_id, opens=said.open, beats=said.beats)
    try:
        calls = await _calls(service, session, body)
        submit = SubmitBody(session_id=session.id, calls=calls, detach=detach)
        if said.run_tools:
            submit = SubmitBody(session_id=session.id, steps=(_agent(calls, said),))
        tasks = await service.submit(session, submit, whole=not body.stream, restored=restored)
    except BaseException as error:
        body.name_field(error)
        if own:
            service.close(session)
        else:
            runs.leave(session)
        if found is not None and guessed is not None:
            guessed.abandon(found)
        raise
    ours = None if body.weftline is None or said.run_tools else _ids(session, tasks[0])
    reply = Reply.new(shape, service.engines.model(body.model).name, ours)
    guessed = None if found is None else guessed
    return Running(service, runs, session, tasks, own, body, reply, state.prices, guessed, kept)


def _said(body: Body) -> Provenance:
    """What the request says of its session."""
    said = body.weftline or Provenance()
    return said if body.session_id is None else replace(said, session_id=body.session_id)


async def _calls(service: Service, session: ServerSession, body: Body) -> tuple[Call, ...]:
    if isinstance(body, CompletionRequest):
        decode = service.engines.model(body.model).prompter.decoded
        if body.has_tokens:  # decoding a megabyte of them takes a while
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(None, body.calls, session, decode)
        return body.calls(session, decode)
    described = service.engines.model(body.model).prompter.description
    return body.calls(session, renders=not described.takes_messages)


def _agent(calls: Sequence[Call], said: Provenance) -> AgentStep:
    """The agent that a request with `run_tools` is."""
    [call] = calls
    return AgentStep(call=call, client_tools=said.client_tools, code_tool=said.code_tool)


def _ids(session: ServerSession, task: Task) -> dict[str, str]:
    """The ids by which a client can name this call's value later."""
    return {"session_id": session.id, "call_id": task.id, "semantic_var_id": task.writes[0]}
