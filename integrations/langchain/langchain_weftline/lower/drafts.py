"""Drafts: the calls and steps of a lowered chain before they are submitted, and the calls then."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from langchain_weftline.lower.symbols import Hole, Prompt, PromptMessage, Ref, Slot
from langchain_weftline.model.call_tools import Toolbox
from langchain_weftline.model.forms import Form
from langchain_weftline.retrieval.vectorstore import StoreInServer
from weftline.contract import steps
from weftline.contract.protocol import (
    Call,
    Criterion,
    InOut,
    Message,
    Placeholder,
    Sampling,
    Segment,
)
from weftline.kit import OUTPUT, Inputs, Server
from weftline.kit.results import LOST

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


@dataclass(frozen=True, slots=True)
class CallOptions:
    """How one call is generated. `model` is None for the server's first model.

    `words` are those for the chat template, as JSON text, so that equal ones have equal hashes.
    """

    sampling: Sampling
    model: str | None
    criteria: Criterion | None = None
    toolbox: Toolbox | None = None
    form: Form | None = None
    words: str = "{}"

    def bound_sampling(self) -> Sampling:
        """The sampling parameters, with the constraint of the form."""
        if self.form is None or (constraint := self.form.constraint) is None:
            return self.sampling
        return replace(self.sampling, constraint=constraint)


@dataclass(frozen=True, slots=True)
class CallDraft:
    """A call before it is submitted, while other readers of its inputs may still be found."""

    name: str
    turns: tuple[PromptMessage, ...]
    var: str
    options: CallOptions

    @property
    def reads(self) -> set[str]:
        return {hole.ref.var for hole in Prompt(self.turns).holes()}


class StepDraft(Protocol):
    """One or more steps of the graph before they are submitted."""

    @property
    def writes(self) -> tuple[str, ...]:
        """The variables that they make."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The variables that they read."""

    def steps(self) -> tuple[steps.Step, ...]:
        """The steps of the submit."""


@dataclass(frozen=True, slots=True)
class EachDraft:
    """The runs of a body for all items of a list, before they are submitted.

    `lists` maps each variable of the body to the list of its values for all items.
    """

    over: Ref
    item: str
    drafts: tuple[CallDraft, ...]
    lists: Mapping[str, str]
    name: str

    @property
    def writes(self) -> tuple[str, ...]:
        """The lists that it makes."""
        return tuple(self.lists.values())

    @property
    def reads(self) -> tuple[str, ...]:
        """The variable of the list, and what the body reads besides its items."""
        own = {self.item, *self.lists}
        outer = (name for draft in self.drafts for name in draft.reads if name not in own)
        return tuple(dict.fromkeys((self.over.var, *outer)))

    def steps(self) -> tuple[steps.Each]:
        return (
            steps.Each(
                over=steps.Source(var=self.over.var, transforms=self.over.transforms),
                item=self.item,
                body=steps.Body(calls=raw_calls(self.drafts)),
                collect=dict(self.lists),
                max_items=steps.MAX_ITEMS,
                name=self.name,
                on_error="value",
                otherwise=LOST,
            ),
        )


@dataclass(frozen=True, slots=True)
class Terms:
    """Where a retriever searches, and what it wants to find."""

    store: StoreInServer
    k: int
    filter: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _OneVariable:
    """Steps that make the variable `var`."""

    var: str

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.var,)


def _source(query: str | Ref) -> steps.Source:
    """The input of a step that is a text, or a variable of the server."""
    if isinstance(query, Ref):
        return steps.Source(var=query.var, transforms=query.transforms)
    return steps.Source(value=query)


@dataclass(frozen=True, slots=True)
class SearchDraft(_OneVariable):
    """The search of one retriever. The hits become the variable `var`.

    The `query` is a text, or a variable of the server, which may be a list of texts.
    """

    query: str | Ref
    embedded: str
    name: str
    terms: Terms

    @property
    def reads(self) -> tuple[str, ...]:
        """The variable of its query, if the server has it."""
        return (self.query.var,) if isinstance(self.query, Ref) else ()

    def steps(self) -> tuple[steps.Embed, steps.Search]:
        """The two steps of the submit."""
        embedder = self.terms.store.embedder
        embed = embedder.step(_source(self.query), self.embedded, f"embed{self.name}")
        search = steps.Search(
            in_=steps.Source(var=self.embedded),
            out=self.var,
            store=self.terms.store.name,
            k=self.terms.k,
            filter=dict(self.terms.filter),
            name=f"search{self.name}",
        )
        return embed, search


@dataclass(frozen=True, slots=True)
class MergeDraft(_OneVariable):
    """The fusion of what was found, before it is submitted. Its hits become the variable `var`.

    `how` has the fields of the step.
    """

    hits: tuple[str, ...]
    name: str
    how: Mapping[str, Any]

    @property
    def reads(self) -> tuple[str, ...]:
        """The hits of each search."""
        return self.hits

    def steps(self) -> tuple[steps.Merge]:
        """The step of the submit."""
        first, *beside = [steps.Source(var=one) for one in self.hits]
        name = f"merge{self.name}"
        return (steps.Merge(in_=first, beside=tuple(beside), out=self.var, name=name, **self.how),)


@dataclass(frozen=True, slots=True)
class RerankDraft(_OneVariable):
    """The reranking of a list of hits, before it is submitted. Its hits become the variable
    `var`."""

    hits: str
    query: str | Ref
    server: Server
    engine: str | None
    k: int | None
    name: str

    @property
    def reads(self) -> tuple[str, ...]:
        """The hits, and the variable of the query, if the server has it."""
        return (self.hits, *((self.query.var,) if isinstance(self.query, Ref) else ()))

    def steps(self) -> tuple[steps.Rerank]:
        """The step of the submit."""
        return (
            steps.Rerank(
                in_=steps.Source(var=self.hits),
                query=_source(self.query),
                out=self.var,
                engine=self.engine,
                k=self.k,
                name=f"rerank{self.name}",
            ),
        )


@dataclass(frozen=True, slots=True)
class BranchDraft(_OneVariable):
    """A branch before it is submitted. The branch's value becomes the variable `var`."""

    on: str
    cases: tuple[tuple[Mapping[str, Any], str], ...]
    default: str
    name: str

    @property
    def sides(self) -> tuple[str, ...]:
        return (*(side for _, side in self.cases), self.default)

    @property
    def reads(self) -> tuple[str, ...]:
        """The variable that decides, and those of the sides."""
        return (self.on, *self.sides)

    def steps(self) -> tuple[steps.Branch]:
        cases = tuple(steps.Case(when=dict(when), take=side) for when, side in self.cases)
        return (
            steps.Branch(
                on=steps.Source(var=self.on),
                cases=cases,
                default=self.default,
                out=self.var,
                name=self.name,
            ),
        )


@dataclass(frozen=True, slots=True)
class TextDraft(_OneVariable):
    """A text that the server writes, before the text is submitted. The text becomes the variable
    `var`."""

    parts: tuple[steps.Source, ...]
    name: str

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(part.var for part in self.parts if part.var is not None)

    def steps(self) -> tuple[steps.Text]:
        return (steps.Text(parts=self.parts, out=self.var, name=self.name),)


def raw_calls(drafts: Sequence[CallDraft]) -> tuple[Call, ...]:
    """`drafts` as calls. Their outputs have no transforms, because LangChain parses the answers."""
    return tuple(_Binding().call(draft) for draft in drafts)


@dataclass
class _Binding:
    """Binds the inputs of one call. Equal inputs share a placeholder, whatever their names."""

    inputs: Inputs = field(default_factory=Inputs)
    names: dict[str, str] = field(default_factory=dict)

    def call(self, draft: CallDraft) -> Call:
        """`draft` as a call whose last message is the answer."""
        messages = [
            Message(
                role=turn.role,
                content=tuple(self._segments(turn.content)),
                name=turn.name,
                reasoning_content=turn.thoughts or None,
            )
            for turn in draft.turns
        ]
        messages.append(Message(role="assistant", content=(Segment(output=OUTPUT),)))
        output = Placeholder(
            name=OUTPUT,
            in_out=InOut.OUT,
            semantic_var_id=draft.var,
            sampling=draft.options.bound_sampling(),
        )
        return Call(
            name=draft.name,
            prompt=tuple(messages),
            placeholders=(*self.inputs.placeholders, output),
            model=draft.options.model,
            criteria=draft.options.criteria,
            chat_template_kwargs=json.loads(draft.options.words) or None,
            separate_reasoning=True,
            **(draft.options.toolbox.fields() if draft.options.toolbox is not None else {}),
        )

    def _segments(self, content: Iterable[str | Slot]) -> Iterator[Segment]:
        text = ""
        for part in content:
            pieces = part.pieces if isinstance(part, Slot) else (part,)
            for piece in pieces:
                if isinstance(piece, str) and (isinstance(part, str) or len(pieces) > 1):
                    text += piece
                    continue
                if text:
                    yield Segment(text=text)
                    text = ""
                assert isinstance(part, Slot), "constant text was taken above"
                yield Segment(input=self._input(part.name, piece))
        if text:
            yield Segment(text=text)

    def _input(self, name: str, piece: str | Hole) -> str:
        """The placeholder for `piece`, which is called `name` if that is free and well formed."""
        bound = self._bound(piece)
        key = json.dumps([bound.value, bound.semantic_var_id, bound.transforms])
        if key not in self.names:
            base = name if _NAME.fullmatch(name) else "value"
            self.names[key] = self.inputs.bind(base, bound)
        return self.names[key]

    def _bound(self, piece: str | Hole) -> Placeholder:
        """A text as a value, or a variable with its transforms."""
        if isinstance(piece, str):
            return Placeholder(name=OUTPUT, in_out=InOut.IN, value=piece)
        return Placeholder(
            name=OUTPUT,
            in_out=InOut.IN,
            semantic_var_id=piece.ref.var,
            transforms=(*piece.ref.transforms, *piece.form),
        )
