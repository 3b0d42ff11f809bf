"""A lowered chain: the calls to submit, and a tree that builds its result from their variables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from langchain_core.prompts import BasePromptTemplate

from langchain_weftline.lower.symbols import (
    AnswerMessage,
    Hole,
    Local,
    Make,
    Prompt,
    PromptMessage,
    Ref,
    Said,
    Slot,
    Spec,
    Text,
    is_symbolic,
)
from langchain_weftline.model.answers import message_of
from langchain_weftline.model.forms import Form
from langchain_weftline.model.tools import Toolbox
from weftline.adapters import OUTPUT, Inputs, Server
from weftline.contract import transforms
from weftline.contract.protocol import (
    Call,
    Criterion,
    InOut,
    Message,
    Placeholder,
    Sampling,
    Segment,
)
from weftline.contract.transforms.base import NO_JSON
from weftline.contract.transforms.partial_json import parse_json_text
from weftline.errors import TransformFailed
from weftline.watching import Value

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


@dataclass(frozen=True, slots=True)
class CallOptions:
    """How one call is generated. `model` is None for the server's first model."""

    sampling: Sampling
    model: str | None
    criteria: Criterion | None = None
    toolbox: Toolbox | None = None
    form: Form | None = None

    def bound_sampling(self) -> Sampling:
        """The sampling parameters, with the constraint of the form."""
        if self.form is None or (constraint := self.form.constraint) is None:
            return self.sampling
        return replace(self.sampling, constraint=constraint)


@dataclass(frozen=True, slots=True)
class Draft:
    """A call before it is submitted, while other readers of its inputs may still be found."""

    name: str
    turns: tuple[PromptMessage, ...]
    var: str
    options: CallOptions

    @property
    def reads(self) -> set[str]:
        return {hole.ref.var for hole in Prompt(self.turns).holes()}


@dataclass(frozen=True, slots=True)
class Variable:
    """The value of variable `var` after `transforms`.

    With `is_message` the value becomes an AIMessage, and `form` is the form that the request asked
    for. `make` builds the client's object from the value or the message. `is_field` says that it is
    a part of an object, which must be valid.
    """

    var: str
    transforms: tuple[Spec, ...] = ()
    is_message: bool = False
    is_text: bool = True
    make: Make | None = None
    form: Form | None = None
    is_field: bool = False


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that the client has."""

    value: Any


@dataclass(frozen=True, slots=True)
class Mapped:
    """A dict."""

    items: tuple[tuple[Any, Tree], ...]


@dataclass(frozen=True, slots=True)
class Listed:
    """A list, or a tuple."""

    items: tuple[Tree, ...]
    is_tuple: bool = False


@dataclass(frozen=True, slots=True)
class Concatenated:
    """A string made of the strings of its parts."""

    parts: tuple[Variable | Constant, ...]


Facts = Mapping[str, Value]
"""The values as the server sent them, by variable. Messages get their usage from them."""


NO_FACTS: Facts = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Rendered:
    """The prompt value that `template` renders from `values`."""

    template: BasePromptTemplate[Any]
    values: tuple[tuple[str, Tree], ...]


@dataclass(frozen=True, slots=True)
class Worded:
    """A message of class `cls` with this content."""

    cls: type[Any]
    content: Concatenated


Tree = Variable | Constant | Mapped | Listed | Concatenated | Rendered | Worded


@dataclass(frozen=True, slots=True)
class Lowered:
    """The calls to submit, their server, and the chain's result as a tree."""

    calls: tuple[Call, ...]
    result: Tree
    server: Server | None = None

    def variables(self) -> tuple[str, ...]:
        """The distinct variables that the result needs, in order."""
        return variables_of(self.result)

    def streamable(self) -> Variable | None:
        """The result, if it is one variable whose text is not transformed; otherwise None."""
        result = self.result
        if not isinstance(result, Variable) or result.transforms or not result.is_text:
            return None
        if result.form is not None:
            return None  # its last chunk has an object that is built from the whole text
        outputs = [p for call in self.calls for p in call.placeholders if p.in_out is InOut.OUT]
        baked = any(p.transforms for p in outputs if p.semantic_var_id == result.var)
        return None if baked else result

    def build(self, values: Mapping[str, Any], facts: Facts = NO_FACTS) -> Any:
        """The chain's result, from the values of `variables()`. Raises TransformFailed."""
        return build(self.result, values, facts)


def variables_of(tree: Tree) -> tuple[str, ...]:
    """The distinct variables that `tree` needs, in order."""
    return tuple(dict.fromkeys(leaf.var for leaf in _variables(tree)))


def fields_of(tree: Tree) -> tuple[str, ...]:
    """The distinct variables of objects of which `tree` needs a field, in order."""
    return tuple(dict.fromkeys(leaf.var for leaf in _variables(tree) if leaf.is_field))


def specs_of(tree: Tree) -> Iterator[Spec]:
    """The transforms that building `tree` runs."""
    for leaf in _variables(tree):
        yield from leaf.transforms


def _variables(tree: Tree) -> Iterator[Variable]:
    if isinstance(tree, Variable):
        yield tree
    elif isinstance(tree, Mapped):
        for _, item in tree.items:
            yield from _variables(item)
    elif isinstance(tree, Rendered):
        for _, item in tree.values:
            yield from _variables(item)
    elif isinstance(tree, Worded):
        yield from _variables(tree.content)
    elif isinstance(tree, (Listed, Concatenated)):
        for item in tree.items if isinstance(tree, Listed) else tree.parts:
            yield from _variables(item)


def build(tree: Tree, values: Mapping[str, Any], facts: Facts) -> Any:
    """The value of `tree`, from the values of its variables. Raises TransformFailed."""
    if isinstance(tree, Constant):
        return tree.value
    if isinstance(tree, Variable):
        value = _transformed(tree.transforms, values[tree.var])
        if tree.is_message:
            value = message_of(facts.get(tree.var) or Value(tree.var, value, {}), tree.form)
        return value if tree.make is None else tree.make(value)
    if isinstance(tree, Mapped):
        return {key: build(item, values, facts) for key, item in tree.items}
    if isinstance(tree, Concatenated):
        return "".join(build(part, values, facts) for part in tree.parts)
    if isinstance(tree, Worded):
        return tree.cls(build(tree.content, values, facts))
    if isinstance(tree, Rendered):
        made = {key: build(item, values, facts) for key, item in tree.values}
        return tree.template.format_prompt(**made)
    items = [build(item, values, facts) for item in tree.items]
    return tuple(items) if tree.is_tuple else items


def _transformed(specs: tuple[Spec, ...], value: Any) -> Any:
    """`value` after its transforms. In the client it may be a value like NaN that JSON lacks."""
    try:
        return transforms.run(specs, value)
    except TransformFailed as failure:
        if failure.param != "json" or NO_JSON not in failure.message:
            raise
        return transforms.run(specs[1:], parse_json_text(value.strip()))


def finish(
    drafts: Sequence[Draft],
    result: Any,
    server: Server | None,
    raw: Callable[[Sequence[Draft]], Iterable[str]] = lambda _: (),
    also: Iterable[str] = (),
) -> Lowered:
    """`drafts` as calls, and `result` as a tree. Calls whose answers nobody reads are left out.

    If all readers of a variable want the same transforms, they become transforms of the call's
    output. Then the value is parsed once, and the graph shows it parsed. If the readers want
    different transforms, the variable stays raw, and each input has its own transforms. In both
    cases the model generates once, and no reader waits for a parser of another reader.

    The variables that `raw` names and those of `also`, which steps of the client read, stay raw.
    Variables of earlier submits do not change.
    """
    # The client reads JSON itself: the server could not send NaN, which LangChain's parser accepts.
    leaves = list(_variables(tree_of(result)))
    also = {*also, *(leaf.var for leaf in leaves if {"op": "json"} in leaf.transforms[:1])}
    drafts = _read(drafts, {leaf.var for leaf in leaves} | also)
    kept = {*raw(drafts), *also}
    uses: dict[str, list[tuple[Spec, ...]]] = {draft.var: [] for draft in drafts}
    for draft in drafts:
        for hole in Prompt(draft.turns).holes():
            uses.get(hole.ref.var, []).append(hole.ref.transforms)
    for leaf in leaves:
        uses.get(leaf.var, []).append(leaf.transforms)
    shared = {var: _common_start(readers) for var, readers in uses.items() if var not in kept}
    calls = tuple(_Binding(shared).call(draft) for draft in drafts)
    return Lowered(calls, _tree(result, shared), server)


def with_texts(draft: Draft, texts: Mapping[str, Mapping[str, str]]) -> Draft:
    """`draft`, with variables that the client has set replaced by their `texts`."""

    def known(piece: str | Hole) -> str | Hole:
        if isinstance(piece, str) or piece.ref.var not in texts:
            return piece
        try:
            specs = (*piece.ref.transforms, *piece.form)
            return str(transforms.run(specs, texts[piece.ref.var]))
        except TransformFailed:
            return piece  # the server fails the call

    turns = tuple(
        replace(
            turn,
            content=tuple(
                part if isinstance(part, str) else Slot(part.name, tuple(map(known, part.pieces)))
                for part in turn.content
            ),
        )
        for turn in draft.turns
    )
    return replace(draft, turns=turns)


def raw_calls(drafts: Sequence[Draft]) -> tuple[Call, ...]:
    """`drafts` as calls without output transforms, because not all their readers are known yet."""
    return tuple(_Binding({}).call(draft) for draft in drafts)


def body_calls(drafts: Sequence[Draft], shared: Mapping[str, tuple[Spec, ...]]) -> tuple[Call, ...]:
    """`drafts` as the calls of a body, with the transforms `shared` of their outputs."""
    return tuple(_Binding(shared).call(draft) for draft in drafts)


def tree_of(value: Any) -> Tree:
    """The tree that builds `value` from raw variables."""
    return _tree(value, {})


def _read(drafts: Sequence[Draft], wanted: set[str]) -> list[Draft]:
    """The drafts that make the `wanted` variables, and all drafts that these read, in order."""
    kept = []
    for draft in reversed(drafts):  # a draft reads only what earlier ones make
        if draft.var in wanted:
            kept.append(draft)
            wanted |= draft.reads
    return kept[::-1]


def _common_start(readers: list[tuple[Spec, ...]]) -> tuple[Spec, ...]:
    start = readers[0] if readers else ()
    for reader in readers:
        same = [mine == theirs for mine, theirs in zip(start, reader, strict=False)]
        start = start[: (*same, False).index(False)]
    return start


def _tree(value: Any, shared: Mapping[str, tuple[Spec, ...]]) -> Tree:
    if not is_symbolic(value):
        return Constant(value)
    if isinstance(value, Ref) and value.form is not None:
        form, make = value.form, value.make
        return Variable(value.var, is_message=True, is_text=False, make=make, form=form)
    if isinstance(value, Ref):
        rest = value.transforms[len(shared.get(value.var, ())) :]
        return Variable(
            value.var, rest, is_text=value.is_text, make=value.make, is_field=value.is_field
        )
    if isinstance(value, Local):
        return Variable(value.var, is_text=False, make=value.part)
    if isinstance(value, AnswerMessage):
        is_text = not value.calls_tools
        return Variable(value.var, is_message=True, is_text=is_text, form=value.form)
    if isinstance(value, Text):
        return Concatenated(tuple(_part(piece, shared) for piece in value.pieces))
    if isinstance(value, Said):
        parts = tuple(_part(piece, shared) for piece in value.pieces)
        return Worded(value.cls, Concatenated(parts))
    if isinstance(value, dict):
        return Mapped(tuple((key, _tree(item, shared)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return Listed(tuple(_tree(item, shared) for item in value), isinstance(value, tuple))
    if isinstance(value, Prompt) and value.source is not None:
        template, values = value.source
        return Rendered(template, tuple((k, _tree(item, shared)) for k, item in values.items()))
    raise AssertionError(f"nothing else is symbolic, and this is {type(value).__name__}")


def _part(piece: str | Hole, shared: Mapping[str, tuple[Spec, ...]]) -> Variable | Constant:
    if isinstance(piece, str):
        return Constant(piece)
    leaf = _tree(piece.ref, shared)
    assert isinstance(leaf, Variable), "a reference is a variable"
    return replace(leaf, transforms=(*leaf.transforms, *piece.form))


@dataclass
class _Binding:
    """Binds the inputs of one call. Equal inputs share a placeholder, whatever their names."""

    shared: Mapping[str, tuple[Spec, ...]]
    inputs: Inputs = field(default_factory=Inputs)
    names: dict[str, str] = field(default_factory=dict)

    def call(self, draft: Draft) -> Call:
        """`draft` as a call whose last message is the answer."""
        messages = [
            Message(role=turn.role, content=tuple(self._segments(turn.content)), name=turn.name)
            for turn in draft.turns
        ]
        messages.append(Message(role="assistant", content=(Segment(output=OUTPUT),)))
        output = Placeholder(
            name=OUTPUT,
            in_out=InOut.OUT,
            semantic_var_id=draft.var,
            transforms=self.shared.get(draft.var, ()),
            sampling=draft.options.bound_sampling(),
        )
        return Call(
            name=draft.name,
            prompt=tuple(messages),
            placeholders=(*self.inputs.placeholders, output),
            model=draft.options.model,
            criteria=draft.options.criteria,
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
        """A text as a value, or a variable with the transforms that its readers do not share."""
        if isinstance(piece, str):
            return Placeholder(name=OUTPUT, in_out=InOut.IN, value=piece)
        ref = piece.ref
        own = ref.transforms[len(self.shared.get(ref.var, ())) :]
        return Placeholder(
            name=OUTPUT,
            in_out=InOut.IN,
            semantic_var_id=ref.var,
            transforms=(*own, *piece.form),
        )
