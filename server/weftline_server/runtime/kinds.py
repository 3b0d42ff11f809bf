"""How the server runs a primitive of each kind: what is sent to an engine, and what comes back."""

from __future__ import annotations

import asyncio
import hashlib
import time
from array import array
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar, Protocol

from weftline.errors import WeftlineError
from weftline.steps import Rerank, Search, Source, Step
from weftline_engine import api
from weftline_server.graph.primitive import Effects, Flow, Primitive, PrimitiveId, ValueBody
from weftline_server.lowering.bounds import is_large, is_small
from weftline_server.lowering.call import PromptBody, template_of
from weftline_server.lowering.control import ControlBody, Question
from weftline_server.lowering.results import Transformed, said, token_logprobs, transformed
from weftline_server.lowering.sampling import asked, is_free, sampling_params
from weftline_server.lowering.step import (
    CHARS_PER_TOKEN,
    StepBody,
    engine_inputs,
    read_values,
    result_of,
)
from weftline_server.lowering.tool import ToolBody
from weftline_server.prompt.prompter import Payload, Prompter
from weftline_server.prompt.tool_format import ToolFormat, triggers
from weftline_server.runtime.prompting import body_of, parts_before, tokenised
from weftline_server.runtime.workers import Workers
from weftline_server.schedule.engines.member import Work
from weftline_server.schedule.memory.lengths import Lengths
from weftline_server.session import events as ev
from weftline_server.session.origin import handed_on
from weftline_server.session.session import Session

# The prefixes of a prompt with these lengths, in tokens, are compared with those of other prompts:
# a KV block first, then steps of a third to a half. With steps of two from 32 on, prefixes of 20
# and 60 tokens counted as 0 and 32.
PREFIX_TOKENS = (16, *(step << n for n in range(4, 14) for step in (2, 3)))


def hints(session: Session, primitive: Primitive) -> api.Hints:
    """Findings of the passes about a primitive, as advice for the policy and the engine."""
    depth, objective, group = session.plan.advice(primitive.id)
    reads_tokens = map(session.watch.reads_tokens, primitive.writes)
    return api.Hints(
        application=session.id,
        group=group,
        depth=depth,
        arrival=session.opened,
        work_left=session.execution.work_left,
        criterion=objective,
        priority=session.graph.tasks[primitive.task].priority,
        traceparent=handed_on(session.tasks[primitive.task].origin, session.id, primitive.task),
        unread=not any(reads_tokens),
    )


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to run a primitive. One that `is_open` has only the beginning of its prompt."""

    number: int = 0
    is_open: bool = False


class Where(Enum):
    """Where a primitive is computed."""

    ENGINE = "engine"
    SERVER = "server"  # by the server itself, in microseconds
    CLIENT = "client"


class Kind(Protocol):
    """The server's side of a kind of primitives. All inputs are ready when it is asked."""

    where: ClassVar[Where]

    async def prepare(self, session: Session, primitive: Primitive) -> Payload:
        """Make the payload from the session's values. Raises a WeftlineError for a bad value."""
        ...

    def charge(self, primitive: Primitive, payload: Payload) -> int:
        """The most tokens that a run of the payload takes from the session's budget."""
        ...

    def work(
        self, session: Session, primitive: Primitive, payload: Payload, attempt: Attempt, now: float
    ) -> Work:
        """The op for an engine, with what the scheduler needs to know of it."""
        ...

    def result(
        self, session: Session, primitive: Primitive, finished: api.Finished
    ) -> Transformed | Coroutine[object, object, Transformed]:
        """The value, or a coroutine that makes it elsewhere because that may take long."""
        ...


class ValueKind:
    """Every other kind: JSON values go out, one JSON value comes back.

    The inputs are the constants of the primitive's `ValueBody` and the values of its variables, by
    the variables' ids.
    """

    where: ClassVar[Where] = Where.ENGINE

    def __init__(self, salt: Callable[[str], str]) -> None:
        self._salt = salt

    async def prepare(self, session: Session, primitive: Primitive) -> Payload:
        constants = primitive.body.inputs if isinstance(primitive.body, ValueBody) else {}
        reads = (read.variable for read in primitive.reads if read.flow is not Flow.ORDER)
        values = {variable: session.variables[variable].value for variable in reads}
        return Payload(None, None, inputs={**constants, **values})

    def charge(self, primitive: Primitive, payload: Payload) -> int:
        return primitive.work

    def work(
        self, session: Session, primitive: Primitive, payload: Payload, attempt: Attempt, now: float
    ) -> Work:
        id = PrimitiveId(session.id, primitive.id)
        op = api.Op(
            id=str(id),
            attempt=attempt.number,
            kind=primitive.kind,
            context=str(id),
            inputs=payload.inputs,
            salt=self._salt(session.tenant),
            hints=hints(session, primitive),
        )
        return Work(
            id,
            primitive.resource,
            op,
            queued_at(session, primitive, attempt, now),
            primitive.work,
            stays=session.stays,
            once=primitive.effects is Effects.ONCE,
        )

    def result(
        self, session: Session, primitive: Primitive, finished: api.Finished
    ) -> Transformed | Coroutine[object, object, Transformed]:
        return Transformed(finished.value)


class StepKind(ValueKind):
    """The kinds of steps: their values are converted to an engine's inputs, and back."""

    def __init__(self, salt: Callable[[str], str], workers: Workers) -> None:
        super().__init__(salt)
        self._workers = workers

    async def prepare(self, session: Session, primitive: Primitive) -> Payload:
        step = _step_of(primitive)
        given = await self._given(session, primitive)
        if is_small(list(given.values())):
            inputs = engine_inputs(step, given)
        else:
            loop = asyncio.get_running_loop()
            inputs = await loop.run_in_executor(None, engine_inputs, step, given)
        if getattr(step, "store", None) is not None:
            inputs["tenant"] = session.tenant
        return Payload(None, None, inputs=inputs)

    async def rest(self, session: Session, primitive: Primitive) -> dict[str, Any]:
        """The inputs of an op that streams, beside its items. Its other values are ready.

        Raises TransformFailed.
        """
        step = _step_of(primitive)
        match step:
            case Search():
                return {"k": step.k, "filter": step.filter, "tenant": session.tenant}
            case Rerank():
                return {"query": await self._read(session, primitive, step.query)}
        return {}

    def charge(self, primitive: Primitive, payload: Payload) -> int:
        texts = payload.inputs.get("texts")
        if not isinstance(texts, list):
            return primitive.work
        return sum(len(text) for text in texts) // CHARS_PER_TOKEN + 1

    def result(
        self, session: Session, primitive: Primitive, finished: api.Finished
    ) -> Transformed | Coroutine[object, object, Transformed]:
        step = _step_of(primitive)
        given = _values(session, primitive)
        if not any(source.transforms for source in step.sources.values()):
            return Transformed(result_of(step, read_values(step, given), finished.value))
        return self._result(session, primitive, finished)

    async def _result(
        self, session: Session, primitive: Primitive, finished: api.Finished
    ) -> Transformed:
        step, given = _step_of(primitive), await self._given(session, primitive)
        return Transformed(result_of(step, given, finished.value))

    async def _given(self, session: Session, primitive: Primitive) -> dict[str, Any]:
        """What the step reads, by field. Raises TransformFailed."""
        sources = _step_of(primitive).sources.items()
        return {name: await self._read(session, primitive, source) for name, source in sources}

    async def _read(self, session: Session, primitive: Primitive, source: Source) -> Any:
        """The value of a source after its transforms. Raises TransformFailed."""
        if source.var is None:
            return source.value
        value = session.variables[source.var].value
        return await self._workers.apply(session.tenant, source.transforms, value)


def _values(session: Session, primitive: Primitive) -> dict[str, object]:
    return {read.variable: session.variables[read.variable].value for read in primitive.reads}


def _step_of(primitive: Primitive) -> Step:
    assert isinstance(primitive.body, StepBody), f"{primitive.kind} is no step"
    return primitive.body.step


class ServerKind(StepKind):
    """The steps that the server computes, such as merge."""

    where = Where.SERVER


class ClientKind(StepKind):
    """The steps that a client computes. It reads their inputs, and sets their output."""

    where = Where.CLIENT

    def charge(self, primitive: Primitive, payload: Payload) -> int:
        return 0


class ControlKind(ValueKind):
    """The primitives that decide what runs. The server computes them from the session's values."""

    where = Where.SERVER

    def __init__(self, salt: Callable[[str], str], workers: Workers) -> None:
        super().__init__(salt)
        self._workers = workers

    async def prepare(self, session: Session, primitive: Primitive) -> Payload:
        return Payload(None, None)

    def charge(self, primitive: Primitive, payload: Payload) -> int:
        return 0

    def result(
        self, session: Session, primitive: Primitive, finished: api.Finished
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

    async def _asked(self, session: Session, body: ControlBody, asked: Question) -> Transformed:
        """The value of a step that asks what may take long."""
        try:
            answer = await self._workers.run(session.tenant, asked.specs, asked.value, asked.cases)
            return Transformed(body.value(session.variables, answer), reason=body.reason)
        except WeftlineError as error:
            return Transformed(None, error)


class ToolKind(ValueKind):
    """Kind `tool`: the text of a call's arguments goes out, and what the model is told comes back.

    Whatever becomes of the call, it is an observation for the model, and no failure of the graph.
    """

    async def prepare(self, session: Session, primitive: Primitive) -> Payload:
        body = _tool_of(primitive)
        return Payload(None, body.arguments, inputs={"tool": body.tool})

    def charge(self, primitive: Primitive, payload: Payload) -> int:
        return primitive.work

    def work(
        self, session: Session, primitive: Primitive, payload: Payload, attempt: Attempt, now: float
    ) -> Work:
        made = super().work(session, primitive, payload, attempt, now)
        is_open = _tool_of(primitive).is_open
        return replace(made, op=replace(made.op, text=payload.text, open=is_open))

    def result(
        self, session: Session, primitive: Primitive, finished: api.Finished
    ) -> Transformed | Coroutine[object, object, Transformed]:
        assert isinstance(finished.value, dict), "a tool engine's value is an observation"
        return Transformed(finished.value["content"])

    @staticmethod
    def failed(primitive: Primitive, failed: api.Failed) -> api.Finished:
        """The observation of a call that no engine has finished."""
        unknown = "" if primitive.effects is Effects.NONE else ". It may have run"
        now = failed.time
        return api.Finished(
            op=failed.op,
            attempt=failed.attempt,
            sequence=failed.sequence,
            time=now,
            reason=api.FinishReason.STOP,
            usage=api.Usage(
                prompt_tokens=0, cached_tokens=0, output_tokens=0, started=now, filled=now
            ),
            value={"content": f"the tool did not finish: {failed.message}{unknown}"},
        )


def _tool_of(primitive: Primitive) -> ToolBody:
    assert isinstance(primitive.body, ToolBody), f"{primitive.kind} is no tool"
    return primitive.body


class PromptKind:
    """Kinds `fill` and `generate`: a rendered prompt goes out, text comes back."""

    where: ClassVar[Where] = Where.ENGINE

    def __init__(
        self,
        prompter: Callable[[str], Prompter],
        salt: Callable[[str], str],
        without: frozenset[str],
        workers: Workers,
        lengths: Lengths | None = None,
    ) -> None:
        self.prompter = prompter
        self._lengths = lengths
        self._workers = workers
        self._salt = salt
        self._affinity = "affinity" not in without

    async def prepare(self, session: Session, primitive: Primitive) -> Payload:
        parts = parts_before(session, body_of(primitive))
        prompter = self.prompter(primitive.resource)
        return await tokenised(prompter, parts, self._workers, session.tenant)

    def charge(self, primitive: Primitive, payload: Payload) -> int:
        return payload.size + asked(body_of(primitive).output)

    def work(
        self, session: Session, primitive: Primitive, payload: Payload, attempt: Attempt, now: float
    ) -> Work:
        id = PrimitiveId(session.id, primitive.id)
        prompter, size = self.prompter(primitive.resource), payload.size
        prompt_tokens = 0 if attempt.is_open else size
        sampling = sampling_params(body_of(primitive), prompt_tokens, prompter)
        if session.stays and body_of(primitive).call.offered_tools:
            # The session may come back with the tool's answer and continue this context.
            sampling = replace(sampling, pause_on=triggers(prompter.tool_format))
        salt = self._salt(session.tenant)
        op = api.Op(
            id=str(id),
            attempt=attempt.number,
            kind=primitive.kind,
            context=str(id),
            tokens=payload.tokens,
            text=payload.text,
            messages=payload.messages,
            sampling=sampling,
            salt=salt,
            open=attempt.is_open,
            references=references(session, primitive) if prompter.description.drafts else (),
            hints=hints(session, primitive),
        )
        queued = queued_at(session, primitive, attempt, now)
        template, expected = "", None
        if self._lengths is not None and is_free(body_of(primitive).output):
            template = template_of(body_of(primitive))
            expected = self._lengths.expect(salt, template, sampling.max_tokens)
        most = sampling.max_tokens if expected is None else expected.most
        shared = prefixes(payload.tokens, salt) if self._affinity else ()
        means = meanings(session, primitive) if self._affinity else ()
        return Work(
            id,
            primitive.resource,
            op,
            queued,
            size + most,
            shared,
            means,
            session.stays,
            template=template,
            expected=None if expected is None else expected.most,
        )

    def part(self, primitive: Primitive, part: api.Part, now: float) -> ev.TextGenerated:
        """The event of a generated part of an output."""
        logprobs = token_logprobs(part, self.prompter(primitive.resource))
        return ev.TextGenerated(now=now, primitive=primitive.id, text=part.text, logprobs=logprobs)

    def result(
        self, session: Session, primitive: Primitive, finished: api.Finished
    ) -> Transformed | Coroutine[object, object, Transformed]:
        body = body_of(primitive)
        text = session.variables[primitive.writes[0]].text
        format = self.prompter(primitive.resource).tool_format
        specs = body.output.transforms
        if is_large(specs, text) or (body.call.offered_tools and not is_small(text)):
            return self._result(session.tenant, body, (primitive.id, text, format))
        return transformed(body, said(body, primitive.id, text, format))

    async def _result(
        self, tenant: str, body: PromptBody, output: tuple[str, str, ToolFormat]
    ) -> Transformed:
        """The value of a long output, or of one whose transforms may take long."""
        began = time.perf_counter()
        loop = asyncio.get_running_loop()
        try:
            value = await loop.run_in_executor(None, said, body, *output)
            value = await self._workers.apply(tenant, body.output.transforms, value)
        except WeftlineError as error:
            return Transformed(None, error, time.perf_counter() - began)
        return Transformed(value, None, time.perf_counter() - began)


class Kinds:
    """The server's side of every kind. A kind without an entry here is a `ValueKind`."""

    def __init__(
        self,
        prompter: Callable[[str], Prompter],
        salt: Callable[[str], str],
        without: frozenset[str],
        lengths: Lengths | None = None,
    ) -> None:
        self.workers = Workers()
        self.prompts = PromptKind(prompter, salt, without, self.workers, lengths)
        self.steps = StepKind(salt, self.workers)
        self._values = ValueKind(salt)
        self._elsewhere: Mapping[str, Kind] = {
            "client": ClientKind(salt, self.workers),
            "merge": ServerKind(salt, self.workers),
            "text": ServerKind(salt, self.workers),
            "mean": ServerKind(salt, self.workers),
        }
        self._control = ControlKind(salt, self.workers)
        self._tools = ToolKind(salt)

    def of(self, primitive: Primitive) -> Kind:
        """The kind that runs the primitive."""
        if isinstance(primitive.body, PromptBody):
            return self.prompts
        if isinstance(primitive.body, ControlBody):
            return self._control
        if isinstance(primitive.body, ToolBody):
            return self._tools
        if not isinstance(primitive.body, StepBody):
            return self._values
        return self._elsewhere.get(primitive.kind, self.steps)


def references(session: Session, primitive: Primitive) -> tuple[str, ...]:
    """The contexts of what the session ran last, the newest first: outputs of other variables that
    the prompt need not contain, such as those of siblings."""
    recent = (id for id in reversed(session.execution.recent) if id != primitive.id)
    return tuple(str(PrimitiveId(session.id, id)) for id in recent)


def queued_at(session: Session, primitive: Primitive, attempt: Attempt, now: float) -> float:
    """When the primitive was queued, in seconds; an early fill is queued now."""
    step = session.primitives[primitive.id].step
    return now if step is None or attempt.is_open else step.queued


def meanings(session: Session, primitive: Primitive) -> tuple[tuple[str, int], ...]:
    """(hash, estimated length) of the beginnings of a prompt that hold a variable of the session.

    The value need not exist. So calls that will share it go to one engine before it does.
    """
    body = body_of(primitive)
    hashes = session.plan.prefixes.get(primitive.id, ())
    if body.is_constant or not hashes:
        return ()
    holders = {holder.name: holder for holder in body.holders}
    found: list[tuple[str, int]] = []
    chars, begun = 0, False
    for segment, hash in zip(body.before, hashes, strict=False):
        holder = holders.get(segment.input or segment.output or "")
        if holder is None:
            chars += len(segment.text or "")
        elif holder.semantic_var_id is None:
            chars += len(str(holder.value))
        else:
            begun = True
            text = session.variables[holder.semantic_var_id].text
            chars += len(text) or CHARS_PER_TOKEN * EXPECTED_TOKENS
        if begun:
            key = hashlib.blake2b(f"{session.id}/{hash}".encode(), digest_size=8)
            found.append((key.hexdigest(), chars // CHARS_PER_TOKEN))
    return tuple(found)


EXPECTED_TOKENS = 128  # of a variable that is still empty


def prefixes(tokens: tuple[int, ...] | None, salt: str) -> tuple[tuple[str, int], ...]:
    """(hash, length) of the prefixes of `tokens`; equal where the KV cache can be shared."""
    if tokens is None:
        return ()
    digest = hashlib.blake2b(salt.encode(), digest_size=8)
    found, start = [], 0
    for length in PREFIX_TOKENS:
        if length > len(tokens):
            break
        digest.update(array("q", tokens[start:length]).tobytes())
        found.append((digest.hexdigest(), length))
        start = length
    return tuple(found)
