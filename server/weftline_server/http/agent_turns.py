"""Reads the turns of an agent as they are written: what the model says, and the client's calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from weftline.contract.errors import EngineFailed
from weftline_engine.api import FinishReason, Usage
from weftline_server.graph.primitive import Task, Where
from weftline_server.lowering.kinds.turn import TakenCall, begun, first_turn, turn_body, turns
from weftline_server.observe.view import output_step
from weftline_server.prompt.tool_parser import Delta, Said
from weftline_server.runtime.service import Service
from weftline_server.session.session import ServerSession
from weftline_server.session.task import PrimitiveTimes


@dataclass(frozen=True, slots=True)
class Written:
    """What is new in the answer of a turn, whose variable this is.

    `offset` counts the characters that the model has said in the turn before.
    """

    variable: str
    deltas: Sequence[Delta]
    offset: int


@dataclass(frozen=True, slots=True)
class ClientCall:
    """A call that the client has to compute, and the variable of its result."""

    id: str
    name: str
    arguments: str
    variable: str


class AgentTurns:
    """The turns of the agent that is the task `agent`.

    `answers` are those that were not written again, as far as they were read.
    """

    def __init__(self, service: Service, session: ServerSession, agent: str) -> None:
        self._service = service
        self._session = session
        self._agent = agent
        self._told: set[str] = set()  # the client's calls that were read
        self.answers: list[Task] = []

    async def read(
        self, shows: Callable[[Sequence[Delta]], bool], *, wait: bool = False
    ) -> AsyncGenerator[Written | ClientCall, None]:
        """What the model writes, turn by turn, and the calls for the client.

        The client `shows` some parts of the answers: a turn of which it has one is not written
        again. With `wait` inputs of the agent may come from calls that are not submitted yet.
        """
        readers, session, id = self._service.readers, self._session, first_turn(self._agent)
        await readers.get(session, begun(self._agent), wait=wait)  # the first turn is there
        while id:
            turn = session.graph.tasks[id]
            self.answers.append(turn)
            variable = session.variable(turn.writes[0])
            attempt = offset = 0
            try:
                async with aclosing(readers.answer(session, variable.id, shows)) as answer:
                    async for deltas in answer:
                        if variable.attempt != attempt:
                            attempt, offset = variable.attempt, 0
                        yield Written(variable.id, deltas, offset)
                        offset += sum(len(one.text) for one in deltas if isinstance(one, Said))
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

    def _due(self, turn: Task) -> Iterator[ClientCall]:
        """The calls for the client that were not read."""
        graph = self._session.graph
        for one in turn_body(graph, turn.id).taken:
            if not one.task or one.task in self._told:
                continue
            if graph.primitives[f"{one.task}/0"].traits.where is Where.CLIENT:
                self._told.add(one.task)
                self._service.readers.shown(self._session, turn.writes[0])
                yield ClientCall(one.call.id, one.call.name, one.call.arguments, one.result)

    def tasks(self) -> Iterator[str]:
        """The turns and tools so far."""
        graph, first = self._session.graph, first_turn(self._agent)
        for turn in list(turns(graph, first)) if first in graph.tasks else ():
            yield turn.id
            yield from (one.task for one in turn_body(graph, turn.id).taken if one.task)

    @property
    def last(self) -> Task:
        """The last turn."""
        return self.answers[-1]

    @property
    def message(self) -> dict[str, Any]:
        """The last answer as OpenAI's message."""
        return self._message(self.last)

    @property
    def earlier(self) -> list[dict[str, Any]]:
        """The messages before the last answer: the calls of the model, and the tools' results."""
        messages: list[dict[str, Any]] = []
        for one in self.answers[:-1]:
            messages.append(self._message(one))
            messages += map(self._result, turn_body(self._session.graph, one.id).taken)
        return messages

    @property
    def step(self) -> PrimitiveTimes:
        """The step of the last answer."""
        step = output_step(self._session, self.last.writes[0])
        assert step is not None, "the answer has begun"
        return replace(step, reason=step.reason or FinishReason.STOP)

    @property
    def usages(self) -> list[Usage]:
        """The usage of each turn that an engine has counted."""
        steps = (output_step(self._session, turn.writes[0]) for turn in self.answers)
        return [step.usage for step in steps if step is not None and step.usage is not None]

    def _message(self, turn: Task) -> dict[str, Any]:
        value: Any = self._session.variable(turn.writes[0]).value
        return {"role": "assistant", "content": value} if isinstance(value, str) else value

    def _result(self, one: TakenCall) -> dict[str, Any]:
        """The result of a tool as OpenAI's message."""
        found = self._session.variable(one.result)
        content = str(found.value) if found.error is None else found.error.message
        return {"role": "tool", "tool_call_id": one.call.id, "content": content}
