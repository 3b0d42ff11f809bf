"""The explanation of a compiled chain. Making it runs no code of the user, and sends no request
unless the server is asked for advice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from langchain_core.runnables import Runnable

from langchain_weftline.lower.choices import BRANCHES, branches_of, choices_of
from langchain_weftline.lower.lowering import Lowering
from langchain_weftline.lower.maps import EachDraft
from langchain_weftline.lower.plan import Planned, plan
from langchain_weftline.lower.steps import Mode, Note
from langchain_weftline.lower.symbols import AnswerMessage, Ref
from langchain_weftline.model.connection import obstacle
from langchain_weftline.run.advice import Advice, by_server, by_templates

_FUNCTION = (
    "is read and not called if it takes one argument and has only literals, subscripts, f-strings, "
    "+, %, comprehensions, conditions, len, messages, and methods such as strip, split, lower, "
    "replace, format, join and get"
)


# What would make a step part of the graph, by the class of the step.
_REMEDIES: Mapping[str, str] = MappingProxyType(
    {
        "RunnableBranch": "the server decides if the conditions compare texts of models, or parts "
        "of parsed values, with constants (==, in, <, and, or, not, len, .startswith), and if the "
        "sides give texts, or all messages, without the client",
        "RunnableEach": "the server runs it over a list of texts (a list parser, .split), if each "
        "item gives a text without the client",
        "VectorStoreRetriever": "the server searches in a WeftlineVectorStore, by similarity",
    }
)
_OPAQUE = f"a function {_FUNCTION}"
# The client has all that such a step needs before the run, so the graph loses nothing by it.
_KNOWN = ("it is a function on the client's value",)
_CACHES = ("it has a cache", "the global LLM cache (set_llm_cache) may have its answer")


@dataclass(frozen=True, slots=True)
class Requests:
    """The number of requests of a run, and how many of them must follow one another.

    `is_least` says that there may be more, because some calls are known only in the run.
    """

    count: int
    waves: int
    is_least: bool = False

    def __str__(self) -> str:
        least = "at least " if self.is_least else ""
        noun = "request" if self.count == 1 else "requests"
        return f"{least}{self.count} {noun}, {self.waves} in a row"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where each step runs and why, in the order of the chain.

    `str` of it is a table of the steps, and what follows from it. `before` has the requests of the
    plain chain, and `after` those of this one. `advice` says what keeps its prompts from the KV
    cache.
    """

    steps: tuple[Note, ...]
    before: Requests
    after: Requests
    streams: bool = True  # whether the result is streamed from the graph
    is_ahead: bool = False  # whether LangChain runs the chain, with its calls sent ahead
    advice: tuple[Advice, ...] = ()

    @property
    def in_server(self) -> tuple[Note, ...]:
        return tuple(step for step in self.steps if step.in_server)

    @property
    def in_client(self) -> tuple[Note, ...]:
        return tuple(step for step in self.steps if not step.in_server)

    def __str__(self) -> str:
        return "\n".join([*self.table(), "", *self._what_follows()])

    def table(self) -> Iterator[str]:
        """A line for each step, after a heading."""
        names = [".".join(step.path) for step in self.steps]
        widths = (
            max(map(len, ["part", *names])),
            max(len(name) for name in ["step", *(step.step for step in self.steps)]),
        )
        yield f"{'part':<{widths[0]}}  {'step':<{widths[1]}}  where   why"
        for step, name in zip(self.steps, names, strict=True):
            where = "server" if step.in_server else "client"
            why = f"{step.why} ({step.place})" if step.place else step.why
            yield f"{name:<{widths[0]}}  {step.step:<{widths[1]}}  {where}  {why}"

    def _what_follows(self) -> Iterator[str]:
        yield f"Plain: {self.before}. Here: {self.after}."
        seen = set()
        for step in self.in_client:
            name, _, _ = step.step.partition(" ")
            remedy = _OPAQUE if step.place else _REMEDIES.get(name)
            shown = f"{step.step} ({step.place})" if step.place else step.step
            if remedy is not None and shown not in seen and step.why not in _KNOWN:
                seen.add(shown)
                yield f"To make {shown} part of the graph: {remedy}."
        yield from map(str, self.advice)
        yield from self._what_changes()

    def _what_changes(self) -> Iterator[str]:
        """What else is not as in the plain chain."""
        if self.is_ahead or not self.streams:
            yield "Streaming: LangChain runs the chain, and the server runs the calls ahead of it."
        elif any(step.why == BRANCHES for step in self.in_server):
            yield "Streaming: the text comes from the graph, and the client decides branches."
        else:
            yield "Streaming: the text comes from the graph, as it is generated."
        if self.is_ahead:
            yield "Callbacks: they hear of every step, as in the plain chain."
        else:
            yield (
                "Callbacks: they hear of the chain, its model calls and the client's steps, and "
                "not of the server's other steps."
            )
        yield "Arguments: those of a call, such as stop, reach the models as in the plain chain."
        cached = dict.fromkeys(step.step for step in self.in_client if step.why in _CACHES)
        if not cached:
            yield "Caches: no model has one."
        for step in cached:
            yield f"Caches: {step} asks its cache first, so the client makes its calls."

    def _repr_markdown_(self) -> str:
        return f"```\n{self}\n```"


def explain(
    chain: Runnable[Any, Any],
    input: Any,
    mode: Mode = Mode.EXPLAIN,
    options: Mapping[str, Any] | None = None,
    *,
    ask_server: bool = False,
) -> Explanation:
    """How `chain` would be lowered for `input`. UNKNOWN stands for any input.

    With `ask_server` the servers of its models are asked what their caches have missed.
    """
    notes: list[Note] = []
    lowering = Lowering(mode=mode, note=notes.append)
    planned = Planned()
    promises = None if mode.is_ahead else planned
    made = plan(lowering, chain, input, options=options, planned=promises)
    before, after = _requests(lowering, planned)
    text = isinstance(made, Ref) and made.is_text and not made.transforms
    streams = text or (
        isinstance(made, AnswerMessage) and not made.calls_tools and made.form is None
    )
    templates = lowering.calls.templates
    advice = by_templates(templates)
    if ask_server:
        servers = [one.server for one in lowering.calls.models if obstacle(one) is None]
        names = {draft.name for draft in lowering.calls.drafts}
        advice += by_server(servers, templates, names)
    return Explanation(tuple(notes), before, after, streams, mode.is_ahead, tuple(advice))


def _requests(lowering: Lowering, planned: Planned) -> tuple[Requests, Requests]:
    drafts, unknown, mode = lowering.calls.drafts, lowering.calls.unknown, lowering.mode
    made = lowering.searches.drafts
    choices = choices_of(made)
    bodies = {draft.var: draft for draft in made if isinstance(draft, EachDraft)}
    searches = [step for step in made if step.var not in choices and step.var not in bodies]
    searched = {search.var: search for search in searches}
    depths: dict[str, int] = {}

    items = {body.item: body for body in bodies.values()}
    in_bodies = {draft.var: draft for body in bodies.values() for draft in body.drafts}

    def depth_of(name: str) -> int:
        if name in depths:
            return depths[name]
        if name in items:
            return depth_of(items[name].over.var)
        if name in bodies:
            return depth_of(bodies[name].last)
        if name in in_bodies:
            return 1 + max(map(depth_of, in_bodies[name].reads), default=0)
        if name in choices:
            return max(map(depth_of, choices[name].reads), default=0)
        if name in searched:
            return 1 + max(map(depth_of, searched[name].reads), default=0)
        origin = planned.reads.get(name.partition(".")[0], ())
        return max(map(depth_of, origin), default=0)

    for draft in drafts:  # producers come first
        reads = list(draft.reads)
        reads += [guard.on for guard in lowering.calls.asked[draft.var].guards]
        depths[draft.var] = 1 + max(map(depth_of, reads), default=0)
    shown = {name for draft in drafts for name in draft.reads}
    sets = sum(name.partition(".")[0] in planned.reads for name in shown)
    more = unknown > 0 or planned.fetches > 0
    ends = [*depths.values(), *map(depth_of, [*searched, *bodies])]
    waves = max(ends, default=0) + (unknown > 0)
    count, is_sure = _made(lowering)
    count += len(searches) + unknown + len(in_bodies)
    # How many items a list has is known only in the run.
    before = Requests(count, waves, more or bool(bodies) or not is_sure)
    submits = (1 if drafts or searches or bodies else 0) + more
    alone = unknown if mode.is_ahead else 0  # these are not submitted together
    return before, Requests(submits + sets + max(0, alone - 1), submits, more)


def _made(lowering: Lowering) -> tuple[int, bool]:
    """How many of the calls the plain chain makes at least, and whether it makes no others.

    The plain chain makes the calls of one side of a branch only.
    """
    branches = branches_of(lowering.searches.drafts)
    asked = lowering.calls.asked

    def least(calls: Sequence[str], depth: int) -> tuple[int, bool]:
        sides: dict[str, dict[int, list[str]]] = {}
        outside = [call for call in calls if len(asked[call].guards) == depth]
        for call in calls:
            for guard in asked[call].guards[depth : depth + 1]:
                sides.setdefault(guard.branch, {}).setdefault(guard.side, []).append(call)
        count, is_sure = len(outside), True
        for branch, calls_of in sides.items():
            found = [
                least(calls_of.get(number, ()), depth + 1)
                for number in range(len(branches[branch].sides))
            ]
            count += min(found)[0]
            is_sure = is_sure and len(set(found)) == 1 and found[0][1]
        return count, is_sure

    return least([draft.var for draft in lowering.calls.drafts], 0)
