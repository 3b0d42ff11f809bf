"""Which call or search of LangChain takes which result: by its prompt or query and its parameters.

A result goes to a call only if the prompts and the parameters are exactly equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_weftline.ahead.handler_lookup import RerankKey, SearchKey
from langchain_weftline.lower.drafts import (
    BranchDraft,
    CallDraft,
    CallOptions,
    EachDraft,
    MergeDraft,
    RerankDraft,
    SearchDraft,
    StepDraft,
    Terms,
    TextDraft,
)
from langchain_weftline.lower.symbols import Hole, Prompt, PromptMessage, Ref
from weftline.contract import transforms
from weftline.errors import TransformFailed, WeftlineError
from weftline.kit import Claims, Later, Planned, ReadValue, Result, Server
from weftline.kit.fused_hits import FusedHits
from weftline.kit.results import item_of, settled
from weftline.predicates import holds
from weftline.watching import Value

Results = Mapping[str, Result]
Values = Mapping[str, ReadValue]


@dataclass(frozen=True, slots=True)
class CallKey:
    """A call of a model. Calls with equal keys may have each other's answers.

    Each turn is a role, a text, a name and thoughts.
    """

    turns: tuple[tuple[str, str, str | None, str], ...]
    options: CallOptions
    server: Server


Key = CallKey | RerankKey | SearchKey


def watched(drafts: Sequence[CallDraft], steps: Sequence[StepDraft]) -> list[str]:
    """The variables whose values the client needs: all results, and what their keys depend on."""
    made = [draft.var for draft in drafts]
    for step in steps:
        if isinstance(step, (EachDraft, RerankDraft, SearchDraft)):
            made += step.writes
    bodies = [step for step in steps if isinstance(step, EachDraft)]
    own = {name for body in bodies for name in (body.item, *body.lists)}
    # The values of branches, texts and merges follow from what these read.
    own |= {step.var for step in steps if isinstance(step, (BranchDraft, TextDraft, MergeDraft))}
    read = [name for draft in _all(drafts, steps) for name in sorted(draft.reads)]
    read += [name for step in steps for name in step.reads]
    return [name for name in dict.fromkeys([*made, *read]) if name not in own]


def claims_of(
    drafts: Sequence[CallDraft], steps: Sequence[StepDraft], server: Server, results: Results
) -> Claims[Key]:
    """The claims of all calls and searches that were sent ahead."""
    values: dict[str, ReadValue] = dict(results)
    for step in steps:
        if isinstance(step, BranchDraft):
            values[step.var] = BranchValue(step, values)
        elif isinstance(step, TextDraft):
            values[step.var] = TextValue(step, values)
        elif isinstance(step, MergeDraft):
            inputs = tuple(values[name] for name in step.hits)
            values[step.var] = FusedHits(step.steps()[0], inputs)
        elif isinstance(step, RerankDraft):
            values[step.var] = RankedValue(step, results[step.var], values)
    planned: list[Planned[Key]] = [_call(draft, server, results, values) for draft in drafts]
    later: list[Later[Key]] = []
    for step in steps:
        if isinstance(step, EachDraft):
            later.append(_calls_of_items(step, server, results, values))
        elif isinstance(step, RerankDraft):
            planned.append(_rerank(step, results[step.var], values))
        elif isinstance(step, SearchDraft):
            if isinstance(step.query, Ref) and not step.query.is_text:
                later.append(_searches(step, step.query, results[step.var], values))
            else:
                planned.append(_search(step, results[step.var], values))
    return Claims(planned, later)


@dataclass(frozen=True, slots=True)
class BranchValue:
    """The value of a branch, found as the server finds it.

    LangChain goes on as soon as it has the values that decide. The server's own message about the
    branch may arrive a moment later.
    """

    branch: BranchDraft
    values: Values

    def peek(self) -> Value | WeftlineError | None:
        on = self.values[self.branch.on].peek()
        if not isinstance(on, Value):
            return on
        try:
            sides = (side for when, side in self.branch.cases if holds(when, on.value))
            return self.values[next(sides, self.branch.default)].peek()
        except TransformFailed as failure:
            return failure


@dataclass(frozen=True, slots=True)
class TextValue:
    """The value of a text that the server writes of other values."""

    text: TextDraft
    values: Values

    def peek(self) -> Value | WeftlineError | None:
        parts = []
        for part in self.text.parts:
            if part.var is None:
                parts.append(str(part.value))
                continue
            found = self.values[part.var].peek()
            if not isinstance(found, Value):
                return found
            try:
                parts.append(str(transforms.run(part.transforms, found.value)))
            except TransformFailed as failure:
                return failure
        return Value(self.text.var, "".join(parts), {})


@dataclass(frozen=True, slots=True)
class RankedValue:
    """The value of a reranking. Of no hits it is known without the server's message about it.

    LangChain asks no reranker then, and goes on as soon as it has the hits.
    """

    rerank: RerankDraft
    ranked: Result
    values: Values

    def peek(self) -> Value | WeftlineError | None:
        hits = self.values[self.rerank.hits].peek()
        if isinstance(hits, Value) and not any(hits.value):
            return Value(self.rerank.var, [], {})
        return self.ranked.peek()


def _all(drafts: Sequence[CallDraft], steps: Sequence[StepDraft]) -> Iterator[CallDraft]:
    yield from drafts
    for step in steps:
        if isinstance(step, EachDraft):
            yield from step.drafts


def _call(draft: CallDraft, server: Server, answers: Results, values: Values) -> Planned[Key]:
    """A call, whose prompt reads `values` and whose answer is among `answers`."""
    reads = {hole.ref.var: values[hole.ref.var] for hole in Prompt(draft.turns).holes()}

    def key_of(found: Mapping[str, Any]) -> Key | None:
        try:
            turns = tuple(_text(turn, found) for turn in draft.turns)
        except WeftlineError:
            return None
        return CallKey(turns, draft.options, server)

    return Planned(answers[draft.var], reads, key_of)


def _calls_of_items(
    each: EachDraft, server: Server, results: Results, values: Values
) -> Later[Key]:
    """The calls of a body for each item of a list."""

    def expand(found: Mapping[str, Any]) -> list[Planned[Key]]:
        planned = []
        for number, item in enumerate(_value(each.over, found)):
            answers = {
                name: item_of(results[listed], number) for name, listed in each.lists.items()
            }
            known = {**values, **answers, each.item: settled(item)}
            planned += [_call(draft, server, answers, known) for draft in each.drafts]
        return planned

    return Later({each.over.var: values[each.over.var]}, expand)


def _search(search: SearchDraft, hits: Result, values: Values) -> Planned[Key]:
    query = search.query
    if isinstance(query, str):
        key = search_key(search.terms, query)
        return Planned(hits, {}, lambda found: key)

    def key_of(found: Mapping[str, Any]) -> Key | None:
        try:
            return search_key(search.terms, str(_value(query, found)))
        except WeftlineError:
            return None

    return Planned(hits, {query.var: values[query.var]}, key_of)


def _searches(search: SearchDraft, queries: Ref, hits: Result, values: Values) -> Later[Key]:
    """The searches for each of a list of queries."""

    def planned(number: int, query: str) -> Planned[Key]:
        key = search_key(search.terms, query)
        return Planned(item_of(hits, number), {}, lambda found: key)

    def expand(found: Mapping[str, Any]) -> list[Planned[Key]]:
        return [planned(number, query) for number, query in enumerate(_value(queries, found))]

    return Later({queries.var: values[queries.var]}, expand)


def _rerank(rerank: RerankDraft, best: Result, values: Values) -> Planned[Key]:
    """The reranking of the documents that LangChain makes of the hits."""

    def key_of(found: Mapping[str, Any]) -> Key | None:
        query, hits = rerank.query, found[rerank.hits]
        try:
            text = query if isinstance(query, str) else str(_value(query, found))
        except WeftlineError:
            return None
        documents = tuple((hit["id"], hit["text"]) for hit in hits)
        return RerankKey(rerank.server, rerank.engine, text, documents, rerank.k)

    return Planned(best, {name: values[name] for name in rerank.reads}, key_of)


def search_key(terms: Terms, query: str) -> SearchKey:
    """The key of a search for `query`."""
    store, filter = terms.store, json.dumps(dict(terms.filter), sort_keys=True)
    return SearchKey(store.server, store.name, store.embedder, query, terms.k, filter)


def _text(turn: PromptMessage, found: Mapping[str, Any]) -> tuple[str, str, str | None, str]:
    text = "".join(_shown(piece, found) for piece in turn.pieces())
    return turn.role, text, turn.name, turn.thoughts


def _shown(piece: str | Hole, found: Mapping[str, Any]) -> str:
    if isinstance(piece, str):
        return piece
    return str(transforms.run((*piece.ref.transforms, *piece.form), found[piece.ref.var]))


def _value(ref: Ref, found: Mapping[str, Any]) -> Any:
    return transforms.run(ref.transforms, found[ref.var])
