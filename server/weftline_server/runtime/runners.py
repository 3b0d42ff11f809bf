"""How the server runs primitives: what an engine is sent for each, and what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from weftline.contract.errors import WeftlineError
from weftline.contract.steps import Source, StepBase
from weftline.contract.vectors import plain
from weftline_engine import api
from weftline_server.graph.primitive import (
    Primitive,
    Where,
)
from weftline_server.lowering.bounds import is_small
from weftline_server.lowering.control.base import ControlBody, Question
from weftline_server.lowering.kinds import KINDS, item_kind
from weftline_server.lowering.kinds.prompt import PromptBody
from weftline_server.lowering.kinds.tool import ToolBody, observed, observed_failure
from weftline_server.lowering.result_values import Transformed
from weftline_server.lowering.step import CHARS_PER_TOKEN, step_of
from weftline_server.prompt.prompter import Payload, Prompter
from weftline_server.runtime.attempts import Attempt, Runner
from weftline_server.runtime.prompt_runner import PromptRunner
from weftline_server.runtime.workers import Workers
from weftline_server.schedule.engines.member import Work
from weftline_server.schedule.lengths import Lengths
from weftline_server.schedule.turns import Pace
from weftline_server.session.session import ServerSession


class StepRunner(Runner):
    """The kinds of steps: their values are converted to an engine's inputs, and back."""

    def prepare(
        self, session: ServerSession, primitive: Primitive
    ) -> Payload | Coroutine[object, object, Payload]:
        return self._prepare(session, primitive)

    async def _prepare(self, session: ServerSession, primitive: Primitive) -> Payload:
        step = step_of(primitive)
        kind = KINDS.of(step)
        given = await self._given(session, step.sources)
        if is_small(list(given.values())):
            inputs = kind.inputs(step, given)
        else:
            loop = asyncio.get_running_loop()
            inputs = await loop.run_in_executor(None, kind.inputs, step, given)
        return Payload(None, None, inputs=_with_tenant(session, step, inputs))

    async def rest(self, session: ServerSession, primitive: Primitive) -> dict[str, Any]:
        """The inputs of an op that streams, beside its items. The values of these inputs are ready.

        Raises TransformFailed.
        """
        step = step_of(primitive)
        others = {name: source for name, source in step.sources.items() if name != "in"}
        given = await self._given(session, others)
        return _with_tenant(session, step, item_kind(step).rest(step, given))

    def charge(self, primitive: Primitive, payload: Payload) -> int:
        if primitive.traits.where is Where.CLIENT:
            return 0
        texts = payload.inputs.get("texts")
        if not isinstance(texts, list):
            return primitive.work
        return sum(len(text) for text in texts) // CHARS_PER_TOKEN + 1

    def result(
        self, session: ServerSession, primitive: Primitive, finished: api.Finished
    ) -> Transformed | Coroutine[object, object, Transformed]:
        step = step_of(primitive)
        if any(source.transforms for source in step.sources.values()):
            return self._result(session, step, finished)
        given = {name: _raw(session, source) for name, source in step.sources.items()}
        return _valued(step, given, finished)

    async def _result(
        self, session: ServerSession, step: StepBase, finished: api.Finished
    ) -> Transformed:
        return _valued(step, await self._given(session, step.sources), finished)

    async def _given(self, session: ServerSession, sources: Mapping[str, Source]) -> dict[str, Any]:
        """The values of sources by field. Raises TransformFailed."""
        return {name: await self._read(session, source) for name, source in sources.items()}

    async def _read(self, session: ServerSession, source: Source) -> Any:
        """The value of a source after its transforms. Raises TransformFailed."""
        value = _raw(session, source)
        if not source.transforms:
            return value
        value = plain(value)
        return await self._workers.apply(session.tenant, source.transforms, value)


def _raw(session: ServerSession, source: Source) -> Any:
    """The value of a source before its transforms."""
    return source.value if source.var is None else session.variables[source.var].value


def _with_tenant(session: ServerSession, step: StepBase, inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs of the op; a store is told whose documents it may touch."""
    return inputs if getattr(step, "store", None) is None else {**inputs, "tenant": session.tenant}


def _valued(step: StepBase, given: Mapping[str, Any], finished: api.Finished) -> Transformed:
    return Transformed(KINDS.of(step).result(step, given, finished.value))


class ControlRunner(Runner):
    """The primitives that decide what runs. The server computes them from the session's values."""

    def charge(self, primitive: Primitive, payload: Payload) -> int:
        return 0

    def result(
        self, session: ServerSession, primitive: Primitive, finished: api.Finished
    ) -> Transformed | Coroutine[object, object, Transformed]:
        body, variables = primitive.body, session.variables
        assert isinstance(body, ControlBody), f"{primitive.kind} decides nothing"
        asked = body.asks(variables)
        if asked is not None and asked.is_slow:
            return self._asked(session, body, asked)
        try:
            answer = None if asked is None else asked.answer()
            return Transformed(body.value(variables, answer), reason=body.reason)
        except WeftlineError as error:
            return Transformed(None, error)

    async def _asked(
        self, session: ServerSession, body: ControlBody, asked: Question
    ) -> Transformed:
        """The value of a step that asks what may take long."""
        try:
            answer = await self._workers.run(session.tenant, asked.specs, asked.value, asked.cases)
            return Transformed(body.value(session.variables, answer), reason=body.reason)
        except WeftlineError as error:
            return Transformed(None, error)


class ToolRunner(Runner):
    """Kind `tool`: the text of a call's arguments goes out, and an observation for the model comes
    back. A call that fails is an observation, too, and no failure of the graph.
    """

    def prepare(
        self, session: ServerSession, primitive: Primitive
    ) -> Payload | Coroutine[object, object, Payload]:
        body = _tool_of(primitive)
        return Payload(None, body.arguments, inputs={"tool": body.tool})

    def work(
        self,
        session: ServerSession,
        primitive: Primitive,
        payload: Payload,
        attempt: Attempt,
        now: float,
    ) -> Work:
        made = super().work(session, primitive, payload, attempt, now)
        is_open = _tool_of(primitive).is_open
        return replace(made, op=replace(made.op, text=payload.text, open=is_open))

    def result(
        self, session: ServerSession, primitive: Primitive, finished: api.Finished
    ) -> Transformed | Coroutine[object, object, Transformed]:
        return Transformed(observed(finished))

    def failed(self, primitive: Primitive, failed: api.Failed) -> api.Finished | None:
        return observed_failure(primitive.effects, failed)


def _tool_of(primitive: Primitive) -> ToolBody:
    assert isinstance(primitive.body, ToolBody), f"{primitive.kind} is no tool"
    return primitive.body


class Runners:
    """The server's side of every primitive, by its body."""

    def __init__(
        self,
        prompter: Callable[[str], Prompter],
        salt: Callable[[str], str],
        without: frozenset[str],
        pace: Pace,
        lengths: Lengths | None = None,
    ) -> None:
        self.workers = Workers()
        self.prompts = PromptRunner(prompter, salt, without, self.workers, pace, lengths)
        self.steps = StepRunner(salt, self.workers, pace)
        self._control = ControlRunner(salt, self.workers, pace)
        self._tools = ToolRunner(salt, self.workers, pace)

    def of(self, primitive: Primitive) -> Runner:
        match primitive.body:
            case PromptBody():
                return self.prompts
            case ControlBody():
                return self._control
            case ToolBody():
                return self._tools
        return self.steps
