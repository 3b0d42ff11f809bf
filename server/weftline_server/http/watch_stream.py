"""A submit with `watch`: the events of each variable, of the client's steps, and of agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from weftline.contract.errors import EngineUnavailable, StorageFull, WeftlineError
from weftline.contract.protocol import SubmitBody
from weftline_server.http.agent_turns import AgentTurns, ClientCall, Written
from weftline_server.http.event_stream import sse
from weftline_server.http.openai.replies import finish_reason, usage_body
from weftline_server.http.renderings import Renderings
from weftline_server.http.value_response import value_event
from weftline_server.journal.fence import SessionMoved
from weftline_server.lowering.bounds import is_small
from weftline_server.lowering.kinds.turn import AnswerBody
from weftline_server.observe.parts import Parts, in_parts, json_text
from weftline_server.observe.view import items_of, output_step, value_parts
from weftline_server.prompt.tool_parser import Delta, Said
from weftline_server.runtime.service import Service
from weftline_server.session.client_values import client_step
from weftline_server.session.session import ServerSession
from weftline_server.session.variable import SessionVariable

MAX_UNSENT = 256  # events of a watch; a slow reader must not fill the server's memory


def event_id(attempt: int, end: int) -> str:
    """The id of an event: the character offset after its part, behind the attempt that made the
    text. Most texts are made in one attempt, number 0.
    """
    return f"{attempt}.{end}" if attempt else str(end)


def leaves(service: Service, variable: SessionVariable, error: WeftlineError) -> bool:
    """Whether the session goes on later, or at another server, and so may the variable.

    The stream then ends without its last event, as it does when the server is killed, and the
    client comes back.
    """
    journal = service.registry.journal
    if journal is not None and journal.is_shared and isinstance(error, SessionMoved | StorageFull):
        return error is not variable.error  # a step that failed by it stays failed
    return service.lifecycle.draining and isinstance(error, EngineUnavailable)


async def watch(
    service: Service, renderings: Renderings, session: ServerSession, body: SubmitBody
) -> AsyncGenerator[bytes, None]:
    """One `value` or `failed` event for each watched variable; with `parts` also its text in parts.

    A `due` event says that the client may compute the step that makes the variable. A failed
    variable leaves the others alone. The stream ends with the last variable; closing it earlier
    counts as a reader that leaves each variable that is not ready.
    """
    watching = _Watching(service, session, body)
    followers = [asyncio.create_task(watching.follow(variable)) for variable in body.watch]
    left = len(followers)
    own = [one for one in body.watch if client_step(session.execution, one) is not None]
    followers += [asyncio.create_task(watching.offer(variable)) for variable in own]
    try:
        while left:
            event, is_last = await watching.events.get()
            left -= is_last
            if isinstance(event, bytes):
                if event:
                    yield event
                continue
            async with aclosing(watching.value(renderings, event)) as pieces:
                async for piece in pieces:
                    yield piece
    finally:
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)


class _Watching:
    """Follows the variables of one watch, and queues their events.

    A text in the queue stands for the variable of that name, which is ready. Its value is made when
    its turn has come, so that a large one does not arrive after what followed from it.
    """

    def __init__(self, service: Service, session: ServerSession, body: SubmitBody) -> None:
        self.events: asyncio.Queue[tuple[bytes | str, bool]] = asyncio.Queue(MAX_UNSENT)
        self._service = service
        self._session = session
        self._parts = body.parts
        self._wait = body.wait
        self._agents: dict[str, AgentTurns] = {}
        self._reasoning: dict[str, int] = {}  # the tokens of thoughts, before a value is sent

    async def follow(self, variable: str) -> None:
        """Queue the texts of a variable if they are asked for, then its end."""
        readers, session = self._service.readers, self._session
        try:
            if (owner := _agent(session, variable)) is not None:
                await self._follow_agent(variable, owner)
            elif self._parts:
                async for chunk in readers.stream(session, variable, wait=self._wait):
                    more = {} if chunk.offset else self._thoughts(variable)
                    await self._text(variable, chunk.offset, chunk.text, **more)
            else:
                await readers.get(session, variable, wait=self._wait)
            last: bytes | str = variable
        except WeftlineError as error:
            if leaves(self._service, session.variable(variable), error):
                await self.events.put((b"", True))
                return
            failed = {"semantic_var_id": variable, **error.to_body()}
            last = sse("failed", failed, id=f"{variable} ")
        await self.events.put((last, True))

    async def offer(self, variable: str) -> None:
        """Queue that the client may compute the step that makes the variable."""
        if await self._service.readers.due(self._session, variable):
            await self.events.put((sse("due", {"semantic_var_id": variable}), False))

    async def value(self, renderings: Renderings, variable: str) -> AsyncGenerator[bytes, None]:
        """The event with the value of a ready variable, in pieces if it is large."""
        session, id = self._session, f"{variable} "
        for one in (variable, *items_of(session, variable)):
            if one is not None and (tokens := await self._thought_tokens(one)):
                self._reasoning[one] = tokens
        if is_small(session.variable(variable).value):
            yield sse("value", await json_text(self._fields(variable)), id=id)
            return
        parts = (one for one in self._fields(variable) if one is None or one[0] != "value")
        fields = await json_text(parts)
        async with aclosing(value_event(renderings, session, variable, fields, id)) as pieces:
            async for piece in pieces:
                yield piece

    def _fields(self, variable: str) -> Parts:
        """What the event of a value says. That of an agent has its conversation, too."""
        yield from value_parts(self._session, variable, self._reasoning)
        if (turns := self._agents.get(variable)) is not None:
            yield from in_parts("messages", iter((*turns.earlier, turns.message)))
            reason = turns.step.reason
            assert reason is not None, "the agent has ended"
            yield "finish_reason", finish_reason(reason, "tool_calls" in turns.message)
            yield "usage", usage_body(turns.usages, 1)

    def _thoughts(self, variable: str) -> dict[str, str]:
        """The thoughts before a text, which are complete when it begins."""
        step = output_step(self._session, variable)
        return {"reasoning_content": "".join(step.thoughts)} if step and step.thoughts else {}

    async def _thought_tokens(self, variable: str) -> int:
        """The tokens of a call's thoughts, 0 where its engine keeps its tokenizer to itself."""
        value: Any = self._session.variable(variable).value
        found = value if isinstance(value, dict) and "role" in value else self._thoughts(variable)
        thoughts = found.get("reasoning_content")
        producer = self._session.graph.producer.get(variable)
        if not thoughts or producer is None:
            return 0
        task = self._session.graph.tasks[self._session.graph.primitives[producer].task]
        if task.call is None:
            return 0
        prompter = self._service.engines.model(task.call.model).prompter
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, prompter.count, thoughts)

    async def _follow_agent(self, variable: str, owner: str) -> None:
        """Queue the texts of an agent's turns, and the calls that the client has to compute."""
        readers, session = self._service.readers, self._session
        turns = self._agents[variable] = AgentTurns(self._service, session, owner)
        ended = asyncio.create_task(readers.get(session, variable, wait=self._wait))
        try:
            async with aclosing(turns.read(self._shows, wait=self._wait)) as parts:
                async for part in parts:
                    await self._agent_part(variable, part)
            await ended
        except WeftlineError:
            await ended  # the agent's own error, which says what failed in it
            raise
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)

    def _shows(self, deltas: Sequence[Delta]) -> bool:
        return self._parts and any(isinstance(one, Said) and one.text for one in deltas)

    async def _agent_part(self, agent: str, part: Written | ClientCall) -> None:
        if isinstance(part, ClientCall):
            call = asdict(part)
            due = {"semantic_var_id": call.pop("variable"), "agent": agent, "call": call}
            await self.events.put((sse("due", due), False))
        elif self._shows(part.deltas):
            text = "".join(one.text for one in part.deltas if isinstance(one, Said))
            await self._text(part.variable, part.offset, text, agent=agent)

    async def _text(self, variable: str, offset: int, text: str, **more: str) -> None:
        place = event_id(self._session.variable(variable).attempt, offset + len(text))
        said = {"semantic_var_id": variable, "offset": offset, "text": text, **more}
        await self.events.put((sse("part", said, id=f"{variable} {place}"), False))


def _agent(session: ServerSession, variable: str) -> str | None:
    """The task of the agent whose answer the variable is; None of another variable."""
    producer = session.graph.producer.get(variable)
    if producer is None or not isinstance(session.graph.primitives[producer].body, AnswerBody):
        return None
    return session.graph.primitives[producer].task
