"""The explanation of an accelerated chain. Making it runs no code of the user, and sends no request
unless the server is asked for advice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from types import MappingProxyType
from typing import Any

from langchain_core.runnables import Runnable

from langchain_weftline.ahead.cache_advice import Advice, by_server, by_templates
from langchain_weftline.lower.branch_drafts import branches_of
from langchain_weftline.lower.chain_steps import Note
from langchain_weftline.lower.drafts import (
    EachDraft,
    SearchDraft,
)
from langchain_weftline.lower.lowering import Lowering
from langchain_weftline.model.connection_settings import obstacle

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
_PAIRS = 3  # of runs that count where a chain is measured
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
class Seconds:
    """The median seconds of a chain's runs, plain and accelerated."""

    plain: float
    accelerated: float

    @classmethod
    def of(cls, plain: Callable[[], object], accelerated: Callable[[], object]) -> Seconds:
        """Time both in pairs. The first pair does not count, because it fills the caches."""
        found: tuple[list[float], list[float]] = ([], [])
        for _ in range(_PAIRS + 1):
            for seconds, way in zip(found, (plain, accelerated), strict=True):
                began = perf_counter()
                way()
                seconds.append(perf_counter() - began)
        return cls(*(median(seconds[1:]) for seconds in found))

    def __str__(self) -> str:
        ratio = self.plain / self.accelerated
        return f"{self.plain:.2f} s plain, {self.accelerated:.2f} s here: {ratio:.2f} times as fast"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Which steps the server computes ahead and why, in the order of the chain.

    `str` of it is a table of the steps, and what follows from it. `before` has the requests of the
    plain chain, and `after` those of this one. `advice` says what keeps its prompts from the KV
    cache. `measured` is None unless the chain was run for it.
    """

    steps: tuple[Note, ...]
    before: Requests
    after: Requests
    advice: tuple[Advice, ...] = ()
    measured: Seconds | None = None

    @property
    def in_server(self) -> tuple[Note, ...]:
        return tuple(step for step in self.steps if step.in_server)

    @property
    def in_client(self) -> tuple[Note, ...]:
        return tuple(step for step in self.steps if not step.in_server)

    def __str__(self) -> str:
        return "\n".join([*self.table(), "", *self.what_follows()])

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

    def what_follows(self) -> Iterator[str]:
        """Sentences: how many requests there are, what would save more, and what has a cache."""
        yield f"Plain: {self.before}. Here: {self.after}."
        if self.measured is not None:
            yield f"Measured: {self.measured}."
        seen = set()
        for step in self.in_client:
            name, _, _ = step.step.partition(" ")
            remedy = _OPAQUE if step.place else _REMEDIES.get(name)
            shown = f"{step.step} ({step.place})" if step.place else step.step
            if remedy is not None and shown not in seen and step.why not in _KNOWN:
                seen.add(shown)
                yield f"To make {shown} part of the graph: {remedy}."
        yield from map(str, self.advice)
        cached = dict.fromkeys(step.step for step in self.in_client if step.why in _CACHES)
        if not cached:
            yield "Caches: no model has one."
        for name in cached:
            yield f"Caches: {name} asks its cache first, so the client makes its calls."

    def _repr_markdown_(self) -> str:
        return f"```\n{self}\n```"


def explain(
    chain: Runnable[Any, Any],
    input: Any,
    options: Mapping[str, Any],
    *,
    ask_server: bool = False,
) -> Explanation:
    """What of `chain` would be sent ahead for `input`.

    With `ask_server` the servers of its models are asked what their caches have missed.
    """
    notes: list[Note] = []
    lowering = Lowering(note=notes.append)
    lowering.plan(chain, input, options=options)
    before, after = _requests(lowering)
    templates = lowering.calls.templates
    advice = by_templates(templates)
    if ask_server:
        servers = [one.server for one in lowering.calls.models if obstacle(one) is None]
        names = {draft.name for draft in lowering.calls.drafts}
        advice += by_server(servers, templates, names)
    return Explanation(tuple(notes), before, after, tuple(advice))


def _requests(lowering: Lowering) -> tuple[Requests, Requests]:
    drafts, unknown = lowering.calls.drafts, lowering.calls.unknown
    made = lowering.searches.drafts
    bodies = [step for step in made if isinstance(step, EachDraft)]
    searches = [step for step in made if isinstance(step, SearchDraft)]
    in_bodies = sum(len(body.drafts) for body in bodies)
    depths = _depths(lowering)
    waves = max(depths.values(), default=0) + (unknown > 0)
    count, is_sure = _made(lowering)
    count += len(searches) + unknown + in_bodies
    # How many items a list has is known only in the run.
    before = Requests(count, waves, unknown > 0 or bool(bodies) or not is_sure)
    submits = 1 if drafts or made else 0
    return before, Requests(submits + unknown, submits + (unknown > 0), unknown > 0)


def _depths(lowering: Lowering) -> dict[str, int]:
    """How many requests of the plain chain follow one another up to each variable."""
    made, guards = lowering.searches.drafts, lowering.calls.guards
    branches = branches_of(made)
    writers: dict[str, tuple[Sequence[str], int]] = {}
    for draft in lowering.calls.drafts:
        decided = [branches[guard.branch].on for guard in guards.get(draft.var, ())]
        writers[draft.var] = ([*draft.reads, *decided], 1)
    for step in made:
        if isinstance(step, EachDraft):
            writers |= {draft.var: (tuple(draft.reads), 1) for draft in step.drafts}
            writers |= {listed: ((name,), 0) for name, listed in step.lists.items()}
            writers[step.item] = ((step.over.var,), 0)
        else:
            writers |= {
                name: (step.reads, int(isinstance(step, SearchDraft))) for name in step.writes
            }
    depths: dict[str, int] = {}

    def depth_of(name: str) -> int:
        if name not in depths:
            reads, own = writers.get(name, ((), 0))
            depths[name] = own + max(map(depth_of, reads), default=0)
        return depths[name]

    for name in writers:
        depth_of(name)
    return depths


def _made(lowering: Lowering) -> tuple[int, bool]:
    """How many of the calls the plain chain makes at least, and whether it makes no others.

    The plain chain makes the calls of one side of a branch only.
    """
    branches = branches_of(lowering.searches.drafts)
    guards = lowering.calls.guards

    def least(calls: Sequence[str], depth: int) -> tuple[int, bool]:
        sides: dict[str, dict[int, list[str]]] = {}
        outside = [call for call in calls if len(guards.get(call, ())) == depth]
        for call in calls:
            for guard in guards.get(call, ())[depth : depth + 1]:
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
