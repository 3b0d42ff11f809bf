"""A plan as calls of the server: prompts in pieces, and the variables that they read and write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from llama_index.llms.weftline.plan.answer_symbols import Given, Index, PlannedAnswer, Symbols
from llama_index.llms.weftline.plan.call_plan import CallPlan, PlannedCall, Unplannable
from llama_index.llms.weftline.trace.run_provenance import SessionRun

from weftline.contract.parameters import COMMON
from weftline.contract.protocol import (
    Call,
    Criterion,
    InOut,
    Message,
    Placeholder,
    Sampling,
    Segment,
)
from weftline.contract.sampling import stop_strings
from weftline.contract.tools import Function, Tool
from weftline.kit import OUTPUT, Inputs, Piece

_SAMPLED = {"max_tokens", "constraint", *COMMON}
_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")


def variable(index: int) -> str:
    """The variable that call number `index` of a session's graphs writes."""
    return f"answer_{index}"


class Naming(Protocol):
    """The variables of a plan: what its calls write, and what it reads."""

    @property
    def run(self) -> SessionRun:
        """The run whose earlier answers its prompts may hold."""
        ...

    def variable(self, index: Index) -> str:
        """The variable of the answer with this index."""
        ...


@dataclass(frozen=True, slots=True)
class Names:
    """The variables of a plan whose calls stand in a larger graph, by the answers' indexes."""

    run: SessionRun
    by_index: Mapping[Index, str]

    def variable(self, index: Index) -> str:
        """The variable of the answer with this index."""
        return self.by_index[index]


@dataclass(frozen=True, slots=True)
class Numbering:
    """The place of a graph in its session: the number of its first call, and the run.

    `found` is the variable of the nodes that its calls read.
    """

    first: int
    run: SessionRun
    found: str | None = None

    def variable(self, index: Index) -> str:
        """The variable that call number `index` of the graph writes, or the search."""
        if isinstance(index, Given):
            assert index is Given.HITS, f"a plan by itself reads no {index.name}"
            assert self.found is not None, "a plan without a search reads no hits"
            return self.found
        return variable(self.first + index)


def calls_of(plan: CallPlan, fields: Mapping[str, Any], naming: Naming) -> tuple[Call, ...]:
    """The plan as calls for the server. Raises Unplannable for fields that calls do not have."""
    return tuple(
        _call(draft, index, _Binding(plan.symbols, naming), {**fields, **draft.fields})
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


def _call(draft: PlannedCall, index: int, binding: _Binding, fields: dict[str, Any]) -> Call:
    model, stop = fields.pop("model", None), stop_strings(fields.pop("stop", None))
    criteria, words = fields.pop("criteria", None), fields.pop("chat_template_kwargs", None)
    tools = {name: fields.pop(name) for name in _TOOLS if name in fields}
    if (format := fields.pop("response_format", None)) is not None:
        fields["constraint"] = _constraint(format) or fields.get("constraint")
    if unknown := fields.keys() - _SAMPLED:
        raise Unplannable(f"requests have fields that graphs do not: {', '.join(sorted(unknown))}")
    if "tools" in tools:
        tools["tools"] = tuple(Tool(function=Function(**t["function"])) for t in tools["tools"])
    sampling = Sampling(**fields, stop=stop)
    prompt, inputs = _prompt(draft, binding)
    written = binding.naming.variable(index)
    output = Placeholder(name=OUTPUT, in_out=InOut.OUT, semantic_var_id=written, sampling=sampling)
    return Call(
        name=draft.name,
        prompt=prompt,
        placeholders=(*inputs, output),
        model=None if model == "default" else model,
        criteria=None if criteria is None else Criterion(criteria),
        chat_template_kwargs=words,
        separate_reasoning=True,
        **tools,
    )


def _prompt(draft: PlannedCall, binding: _Binding) -> tuple[Any, Iterable[Placeholder]]:
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
    """Binds the inputs of one call: arguments of the templates, and earlier answers.

    An answer of the same graph is a variable, which the server fills in. An answer that the run
    already has is a text, with the name of the variable that it came from.
    """

    symbols: Symbols
    naming: Naming
    inputs: Inputs = field(default_factory=Inputs)

    def segments(self, pieces: Iterable[Piece]) -> Iterator[Segment]:
        for piece in pieces:
            parts = self.symbols.parts(piece.text)
            for part in parts:
                if isinstance(part, PlannedAnswer):
                    yield Segment(input=self.inputs.bind(piece.name or "answer", self._read(part)))
                else:
                    name = piece.name if len(parts) == 1 else None
                    yield from self._given(Piece(part, name))

    def _given(self, piece: Piece) -> Iterator[Segment]:
        for found in self.naming.run.trace((piece,)):
            if piece.name is None:
                yield Segment(text=found.text, from_var=found.from_var)
            else:
                given = Placeholder(
                    name="value", in_out=InOut.IN, value=found.text, from_var=found.from_var
                )
                yield Segment(input=self.inputs.bind(piece.name, given))

    def _read(self, answer: PlannedAnswer) -> Placeholder:
        return Placeholder(
            name="value",
            in_out=InOut.IN,
            semantic_var_id=self.naming.variable(answer.index),
            transforms=tuple(dict(step) for step in answer.steps),
        )
