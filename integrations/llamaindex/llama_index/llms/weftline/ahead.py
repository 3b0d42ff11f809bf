"""A planned graph under way at the server, and its answers for the calls that ask for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from llama_index.llms.weftline.plan import Draft, Plan, Unplannable
from llama_index.llms.weftline.structure import Piece
from llama_index.llms.weftline.symbols import Answer, Part, Symbols, filled, reads

from weftline.background import BACKGROUND, Chain
from weftline.errors import Cancelled, TransformFailed, WeftlineError
from weftline.protocol import (
    Call,
    Criterion,
    InOut,
    Message,
    Placeholder,
    Sampling,
    Segment,
    Submit,
)
from weftline.tools import Function, Tool
from weftline.watching import Event, Failed, Graph, Value
from weftline.watching import Part as TextPart

OUTPUT = "out"
OnGraph = Callable[[Mapping[str, Any]], None]

_TOKENS = {"max_tokens", "min_tokens", "ignore_eos", "constraint"}
_SAMPLED = {"temperature", "top_p", "top_k", "seed", *_TOKENS}
_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")


@dataclass(frozen=True, slots=True)
class Server:
    """Where an LLM is served, and the key to show it."""

    base_url: str
    api_key: str | None = field(repr=False)


def variable(index: int) -> str:
    """The variable that call number `index` of a plan writes."""
    return f"answer_{index}"


def request_key(messages: Iterable[tuple[str, str]], fields: Mapping[str, Any]) -> str:
    """What two requests have in common exactly if they ask the same."""
    return json.dumps([list(messages), fields], sort_keys=True)


@dataclass(eq=False)
class Planned:
    """One call of a graph: what it asks, with which fields, and what becomes of it."""

    messages: tuple[tuple[str, tuple[Part, ...]], ...]
    fields: Mapping[str, Any]
    value: Future[Value] = field(default_factory=Future)
    text: Chain[str] = field(default_factory=Chain)
    taken: bool = False
    has_parts: bool = False

    @property
    def reads(self) -> frozenset[int]:
        return frozenset().union(*(reads(parts) for _, parts in self.messages))

    def key(self, answers: Mapping[int, Any]) -> str | None:
        """Its `request_key`, once the answers that it reads are there; None if they do not parse:
        LlamaIndex then has the error, and never comes here.
        """
        try:
            messages = [(role, filled(parts, answers)) for role, parts in self.messages]
        except TransformFailed:
            return None
        return request_key(messages, self.fields)

    def take(self, event: TextPart | Value | Failed) -> None:
        """What the server says of it."""
        match event:
            case TextPart(text=text):
                self.has_parts = True
                self.text.add(text)
            case Value(value=value):
                if not self.has_parts and isinstance(value, str):
                    self.text.add(value)
                self.text.end()
                self.value.set_result(event)
            case Failed(error=error):
                self.fail(error)

    def fail(self, error: BaseException) -> None:
        if not self.value.done():
            self.text.end(error)
            self.value.set_exception(error)


class Ahead:
    """One graph: its calls were submitted at once, and their values come as they are ready."""

    def __init__(self, plan: Plan, fields: Mapping[str, Any], on_graph: OnGraph | None) -> None:
        self.complete = plan.complete
        self.planned = [
            Planned(
                tuple((role, plan.symbols.parts(text)) for role, text in draft.messages),
                {**fields, **draft.fields},
            )
            for draft in plan.drafts
        ]
        self._calls = calls_of(plan, fields)
        self._on_graph = on_graph
        self._lock = Lock()
        self._work: Future[None] | None = None

    def start(self, server: Server, with_parts: bool) -> None:
        """Submit it; `with_parts` asks for texts as they are generated."""
        submit = Submit(
            calls=self._calls,
            watch=tuple(variable(index) for index in range(len(self._calls))),
            parts=with_parts,
            graph=self._on_graph is not None,
            close=True,
        )
        self._work = BACKGROUND.start(self._follow(server, submit))

    def claim(self, key: str) -> Planned | None:
        """The first call nobody has asked for that asks exactly this."""
        with self._lock:
            answers = dict(self._answers())
            for planned in self.planned:
                ready = not planned.taken and planned.reads <= answers.keys()
                if ready and planned.key(answers) == key:
                    planned.taken = True
                    return planned
        return None

    @property
    def has_left(self) -> bool:
        """Whether there are calls that nobody has asked for."""
        return any(not planned.taken for planned in self.planned)

    def leave(self) -> None:
        """Nobody will ask for more. What is left over is cancelled, unless a taken call runs."""
        running = any(planned.taken and not planned.value.done() for planned in self.planned)
        left = any(not planned.value.done() for planned in self.planned)
        if left and not running and self._work is not None:
            self._work.cancel()  # the connection closes, and with it the session

    def abandon(self) -> None:
        """Cancel whatever is not done, taken or not."""
        if self._work is not None and any(not p.value.done() for p in self.planned):
            self._work.cancel()

    def when_over(self, then: Callable[[], None]) -> None:
        """Call `then` when the server has said all, or was left."""
        assert self._work is not None, "it was started"
        self._work.add_done_callback(lambda _: then())

    def _answers(self) -> Iterator[tuple[int, Any]]:
        for index, planned in enumerate(self.planned):
            if planned.value.done() and planned.value.exception() is None:
                yield index, planned.value.result().value

    async def _follow(self, server: Server, submit: Submit) -> None:
        error: BaseException = Cancelled("the answer ended before this call was ready")
        try:
            client = await BACKGROUND.client(server.base_url, server.api_key)
            async with aclosing(client.watch(submit)) as events:
                async for event in events:
                    self._take(event)
        except WeftlineError as found:
            error = found
        except asyncio.CancelledError:
            error = Cancelled("the graph was left")
        finally:
            for planned in self.planned:
                planned.fail(error)

    def _take(self, event: Event) -> None:
        if isinstance(event, (TextPart, Value, Failed)):
            index = int(event.variable.removeprefix(variable(0)[:-1]))
            self.planned[index].take(event)
        elif isinstance(event, Graph) and self._on_graph is not None:
            self._on_graph(event.graph)


def calls_of(plan: Plan, fields: Mapping[str, Any]) -> tuple[Call, ...]:
    """The plan as the server takes it. Raises Unplannable for fields that calls do not have."""
    return tuple(
        _call(draft, index, plan.symbols, {**fields, **draft.fields})
        for index, draft in enumerate(plan.drafts)
    )


def _constraint(format: Mapping[str, Any]) -> dict[str, Any] | None:
    """What an OpenAI request's response_format asks for, as the server reads it."""
    match format:
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return {"json_schema": schema}
        case {"type": "json_object"}:
            return {"json_schema": {"type": "object"}}
        case {"type": "text"}:
            return None
    raise Unplannable("requests have a response_format that graphs do not")


def _call(draft: Draft, index: int, symbols: Symbols, fields: dict[str, Any]) -> Call:
    model, stop = fields.pop("model", None), fields.pop("stop", None) or ()
    criteria = fields.pop("criteria", None)
    tools = {name: fields.pop(name) for name in _TOOLS if name in fields}
    if (format := fields.pop("response_format", None)) is not None:
        fields["constraint"] = _constraint(format) or fields.get("constraint")
    if unknown := fields.keys() - _SAMPLED:
        raise Unplannable(f"requests have fields that graphs do not: {', '.join(sorted(unknown))}")
    if "tools" in tools:
        tools["tools"] = tuple(Tool(function=Function(**t["function"])) for t in tools["tools"])
    sampling = Sampling(**fields, stop=(stop,) if isinstance(stop, str) else tuple(stop))
    prompt, inputs = _prompt(draft, symbols)
    output = Placeholder(
        name=OUTPUT, in_out=InOut.OUT, semantic_var_id=variable(index), sampling=sampling
    )
    return Call(
        name=draft.name,
        prompt=prompt,
        placeholders=(*inputs, output),
        model=None if model == "default" else model,
        criteria=None if criteria is None else Criterion(criteria),
        **tools,
    )


def _prompt(draft: Draft, symbols: Symbols) -> tuple[Any, Iterable[Placeholder]]:
    binding = _Binding(symbols)
    parts = zip(draft.messages, draft.pieces, strict=True)
    turns = [
        (role, tuple(binding.segments(pieces or (Piece(text),)))) for (role, text), pieces in parts
    ]
    answer = Segment(output=OUTPUT)
    if draft.messages[0][0] == "":
        return (*turns[0][1], answer), binding.placeholders.values()
    said = (Message(role=role, content=content) for role, content in turns)
    prompt = (*said, Message(role="assistant", content=(answer,)))
    return prompt, binding.placeholders.values()


@dataclass
class _Binding:
    """Gives the inputs of one call their placeholders: equal ones share one."""

    symbols: Symbols
    placeholders: dict[str, Placeholder] = field(default_factory=dict)

    def segments(self, pieces: Iterable[Piece]) -> Iterator[Segment]:
        for piece in pieces:
            parts = self.symbols.parts(piece.text)
            for part in parts:
                if isinstance(part, Answer):
                    yield Segment(input=self._input(piece.name or "answer", part))
                elif piece.name is not None and len(parts) == 1:
                    yield Segment(input=self._input(piece.name, part))
                else:
                    yield Segment(text=part)

    def _input(self, base: str, part: Part) -> str:
        number, name = 1, base
        while name == OUTPUT or (name in self.placeholders and not self._is(name, part)):
            number += 1
            name = f"{base}_{number}"
        self.placeholders[name] = _placeholder(name, part)
        return name

    def _is(self, name: str, part: Part) -> bool:
        return self.placeholders[name] == _placeholder(name, part)


def _placeholder(name: str, part: Part) -> Placeholder:
    if isinstance(part, str):
        return Placeholder(name=name, in_out=InOut.IN, value=part)
    return Placeholder(
        name=name,
        in_out=InOut.IN,
        semantic_var_id=variable(part.index),
        transforms=tuple(dict(step) for step in part.steps),
    )
