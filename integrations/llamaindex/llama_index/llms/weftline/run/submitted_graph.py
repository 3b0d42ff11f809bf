"""A planned graph that runs in the server, and its answers for the requests equal to its calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from llama_index.llms.weftline.plan.answer_symbols import (
    Given,
    Index,
    PlannedAnswer,
    Symbols,
    filled,
    reads,
)
from llama_index.llms.weftline.plan.call_plan import CallPlan, PlannedCall, Unplannable
from llama_index.llms.weftline.plan.node_search import NodeHits, NodeSearch, embedded_in, found_in
from llama_index.llms.weftline.trace.run_provenance import SessionRun

from weftline.adapters import OUTPUT, Claims, Inputs, Piece, Planned, Result, RunFeed
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
from weftline.contract.tools import Function, Tool
from weftline.errors import TransformFailed
from weftline.sdk.http import OnGraph
from weftline.watching import Failed
from weftline.watching import Value as ValueEvent

_SAMPLED = {"max_tokens", "constraint", *COMMON}
_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")


def variable(index: int) -> str:
    """The variable that call number `index` of a session's graphs writes."""
    return f"answer_{index}"


def request_key(messages: Iterable[tuple[str, str]], fields: Mapping[str, Any]) -> str:
    """The key of a request. Two requests have equal keys only if messages and fields are equal.

    The fields may have any order, but not what is in them: a model reads a schema in its order.
    """
    return json.dumps([list(messages), sorted(fields.items())])


class SentCalls(Protocol):
    """Calls that were sent ahead."""

    def claim(self, key: str) -> Result | None:
        """The result of the first call with this key that no request has claimed."""
        ...


class SubmittedGraph:
    """One graph. Its calls are submitted together, and their values arrive as they become ready.

    The calls join the session of `run`, in which the graph's prompts may hold earlier answers. With
    a `finding` its steps stand before the calls, which may read the hits. `parts` asks for texts as
    they are generated. `on_graph` gets the session's graph when the last value is there.
    """

    def __init__(
        self,
        plan: CallPlan,
        run: SessionRun,
        finding: NodeSearch | None = None,
        *,
        parts: bool = False,
        on_graph: OnGraph | None = None,
    ) -> None:
        self.complete = plan.complete
        self.askings = [plan.llm.asking]
        self._plan = plan
        self._fields = fields = plan.llm.parameters()
        self._parts = parts
        self._numbering = Numbering(run.reserve(len(plan.drafts)), run)
        self._calls = calls_of(plan, fields, self._numbering)
        self._finding = finding
        self.found: NodeHits | None = None
        self._on_graph = on_graph
        self._feed = RunFeed(plan.llm.asking.server, self._note, run.alias)
        self._claims: Claims[str] = Claims([])

    def start(self) -> None:
        """Submit the graph."""
        finding, first = self._finding, self._numbering.first
        hits = found_in(first)
        embedded = [] if finding is None else embedded_in(first, finding.texts)
        self._feed.send(
            self._calls,
            [*self.variables, *([] if finding is None else [*embedded, hits])],
            steps=() if finding is None else finding.steps(embedded, hits),
            parts=self._parts,
            graph=self._on_graph is not None,
        )
        self._numbering.run.join(self._feed)
        if self._on_graph is not None:
            self._feed.show_graph(self._on_graph)
        results: dict[Index, Result] = {
            at: self._feed.results[name] for at, name in enumerate(self.variables)
        }
        if finding is not None:
            results[Given.HITS] = self._feed.results[hits]
            vectors = [self._feed.results[name] for name in embedded]
            self.found = NodeHits(finding, vectors, results[Given.HITS])
        drafts = range(len(self._plan.drafts))
        self._claims = Claims([planned(self._plan, at, self._fields, results) for at in drafts])

    @property
    def variables(self) -> list[str]:
        """The variables that the calls write, in order."""
        return [self._numbering.variable(index) for index in range(len(self._calls))]

    def _note(self, event: ValueEvent | Failed) -> None:
        """Note an answer, so that later prompts of the run that contain it name its variable."""
        if isinstance(event, ValueEvent) and isinstance(event.value, str):
            self._numbering.run.answered(event.variable, event.value)

    @property
    def results(self) -> list[Result]:
        """The results of the calls, in order."""
        return [one.result for one in self._claims.planned]

    def asked(self) -> Iterator[tuple[list[tuple[str, str]], Mapping[str, Any]]]:
        """The request of each call: its messages, and its fields beside the LLM's own.

        All values must be known.
        """
        answers: dict[Index, Any] = {
            at: result.value.result().value for at, result in enumerate(self.results)
        }
        for draft in self._plan.drafts:
            parts = [(role, self._plan.symbols.parts(text)) for role, text in draft.messages]
            yield [(role, filled(found, answers)) for role, found in parts], draft.fields

    def claim(self, key: str) -> Result | None:
        """The result of the first call with this key that no request has claimed."""
        found = self._claims.claim(key)
        return None if found is None else found.result

    @property
    def has_left(self) -> bool:
        """Whether there are calls that no request has claimed."""
        return self._claims.has_left

    def leave(self) -> None:
        """Note that no more requests will come.

        The calls that no request has claimed are cancelled, unless a claimed call still runs.
        """
        if not any(one.is_claimed and one.is_running for one in self._claims.planned):
            self._feed.close()

    def abandon(self) -> None:
        """Cancel every call that is not done, claimed or not."""
        self._feed.close()

    def when_over(self, then: Callable[[], None]) -> None:
        """Call `then` when all values have arrived, or the graph was cancelled."""
        self._feed.when_over(then)


def planned(
    plan: CallPlan, index: int, fields: Mapping[str, Any], results: Mapping[Index, Result]
) -> Planned[str]:
    """Call number `index` of a plan, with the results of the calls and the values that it reads."""
    draft = plan.drafts[index]
    messages = [(role, plan.symbols.parts(text)) for role, text in draft.messages]
    inputs: frozenset[Index] = frozenset().union(*(reads(parts) for _, parts in messages))

    def key_of(values: Mapping[str, Any]) -> str | None:
        answers = {one: values[str(one)] for one in inputs}
        try:
            texts = [(role, filled(parts, answers)) for role, parts in messages]
        except TransformFailed:
            return None  # LlamaIndex raises the same error itself, and makes no request
        return request_key(texts, {**fields, **draft.fields})

    read = {str(one): results[one] for one in inputs}
    return Planned(results[index], read, key_of)


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
    """The place of a graph in its session: the number of its first call, and the run."""

    first: int
    run: SessionRun

    def variable(self, index: Index) -> str:
        """The variable that call number `index` of the graph writes, or the search."""
        if isinstance(index, Given):
            assert index is Given.HITS, f"a plan by itself reads no {index.name}"
            return found_in(self.first)
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
    prompt, inputs = _prompt(draft, binding)
    written = binding.naming.variable(index)
    output = Placeholder(name=OUTPUT, in_out=InOut.OUT, semantic_var_id=written, sampling=sampling)
    return Call(
        name=draft.name,
        prompt=prompt,
        placeholders=(*inputs, output),
        model=None if model == "default" else model,
        criteria=None if criteria is None else Criterion(criteria),
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
