"""A planned graph under way at the server, and its answers for the requests that ask the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from llama_index.llms.weftline.plan import Draft, Plan, Unplannable
from llama_index.llms.weftline.symbols import Answer, Part, Symbols, filled, reads

from weftline.adapters import OUTPUT, Claims, Feed, Inputs, Piece, Planned, Result, Server
from weftline.errors import TransformFailed
from weftline.http import OnGraph
from weftline.protocol import Call, Criterion, InOut, Message, Placeholder, Sampling, Segment
from weftline.tools import Function, Tool

_TOKENS = {"max_tokens", "min_tokens", "ignore_eos", "constraint"}
_SAMPLED = {"temperature", "top_p", "top_k", "seed", *_TOKENS}
_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")


def variable(index: int) -> str:
    """The variable that call number `index` of a plan writes."""
    return f"answer_{index}"


def request_key(messages: Iterable[tuple[str, str]], fields: Mapping[str, Any]) -> str:
    """The key of a request. Two requests have the same key exactly if they ask the same."""
    return json.dumps([list(messages), fields], sort_keys=True)


class Ahead:
    """One graph. Its calls are submitted together, and their values arrive as they become ready."""

    def __init__(
        self, plan: Plan, fields: Mapping[str, Any], on_graph: OnGraph | None, server: Server
    ) -> None:
        self.complete = plan.complete
        self._plan = plan
        self._fields = fields
        self._calls = calls_of(plan, fields)
        self._on_graph = on_graph
        self._feed = Feed(server)
        self._claims: Claims[str] = Claims([])

    def start(self, with_parts: bool) -> None:
        """Submit the graph. `with_parts` asks for texts as they are generated."""
        watch = [variable(index) for index in range(len(self._calls))]
        graph = self._on_graph is not None
        self._feed.send(self._calls, watch, parts=with_parts, graph=graph, close=True)
        if self._on_graph is not None:
            self._feed.show_graph(self._on_graph)
        results = self._feed.results
        self._claims = Claims(
            [_planned(self._plan, index, self._fields, results) for index in range(len(watch))]
        )

    @property
    def results(self) -> list[Result]:
        """The results of the calls, in order."""
        return [planned.result for planned in self._claims.planned]

    def claim(self, key: str) -> Result | None:
        """The result of the first call with this key that no request has claimed."""
        planned = self._claims.claim(key)
        return None if planned is None else planned.result

    @property
    def has_left(self) -> bool:
        """Whether there are calls that no request has claimed."""
        return self._claims.has_left

    def leave(self) -> None:
        """Note that no more requests come.

        Unclaimed calls are cancelled, unless a claimed call still runs.
        """
        if not any(planned.is_claimed and planned.is_running for planned in self._claims.planned):
            self._feed.close()

    def abandon(self) -> None:
        """Cancel every call that is not done, claimed or not."""
        self._feed.close()

    def when_over(self, then: Callable[[], None]) -> None:
        """Call `then` when the server has answered in full, or the graph was cancelled."""
        self._feed.when_over(then)


def _planned(
    plan: Plan, index: int, fields: Mapping[str, Any], results: Mapping[str, Result]
) -> Planned[str]:
    draft = plan.drafts[index]
    messages = [(role, plan.symbols.parts(text)) for role, text in draft.messages]
    inputs: frozenset[int] = frozenset().union(*(reads(parts) for _, parts in messages))

    def key_of(values: Mapping[str, Any]) -> str | None:
        answers = {index: values[variable(index)] for index in inputs}
        try:
            texts = [(role, filled(parts, answers)) for role, parts in messages]
        except TransformFailed:
            return None  # LlamaIndex raises the same error, and makes no request
        return request_key(texts, {**fields, **draft.fields})

    read = {variable(index): results[variable(index)] for index in inputs}
    return Planned(results[variable(index)], read, key_of)


def calls_of(plan: Plan, fields: Mapping[str, Any]) -> tuple[Call, ...]:
    """The plan as calls for the server. Raises Unplannable for fields that calls do not have."""
    return tuple(
        _call(draft, index, plan.symbols, {**fields, **draft.fields})
        for index, draft in enumerate(plan.drafts)
    )


def _constraint(format: Mapping[str, Any]) -> dict[str, Any] | None:
    """The constraint for the response_format of an OpenAI request; None for plain text."""
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
        return (*turns[0][1], answer), binding.inputs.placeholders
    said = (Message(role=role, content=content) for role, content in turns)
    prompt = (*said, Message(role="assistant", content=(answer,)))
    return prompt, binding.inputs.placeholders


@dataclass
class _Binding:
    """Binds the inputs of one call: arguments of the templates, and earlier answers."""

    symbols: Symbols
    inputs: Inputs = field(default_factory=Inputs)

    def segments(self, pieces: Iterable[Piece]) -> Iterator[Segment]:
        for piece in pieces:
            parts = self.symbols.parts(piece.text)
            for part in parts:
                if isinstance(part, Answer):
                    name = self.inputs.bind(piece.name or "answer", _placeholder(part))
                    yield Segment(input=name)
                elif piece.name is not None and len(parts) == 1:
                    yield Segment(input=self.inputs.bind(piece.name, _placeholder(part)))
                else:
                    yield Segment(text=part)


def _placeholder(part: Part) -> Placeholder:
    if isinstance(part, str):
        return Placeholder(name="value", in_out=InOut.IN, value=part)
    return Placeholder(
        name="value",
        in_out=InOut.IN,
        semantic_var_id=variable(part.index),
        transforms=tuple(dict(step) for step in part.steps),
    )
