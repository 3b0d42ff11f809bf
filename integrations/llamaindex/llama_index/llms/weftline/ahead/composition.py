"""A graph that was sent ahead for an engine over other engines, and how their requests find it.

Which engines are asked, and what, is known when the graph's first call has ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from llama_index.llms.weftline.ahead.plan_calls import Names, calls_of, variable
from llama_index.llms.weftline.ahead.request_claims import planned
from llama_index.llms.weftline.plan.answer_symbols import Given, Index
from llama_index.llms.weftline.plan.call_plan import CallPlan
from llama_index.llms.weftline.plan.node_rerank import RankedNodes
from llama_index.llms.weftline.plan.node_search import NodeHits
from llama_index.llms.weftline.plan.options import Option
from llama_index.llms.weftline.plan.selector import SelectorCall
from llama_index.llms.weftline.trace.run_provenance import SessionRun

from weftline.contract import transforms
from weftline.contract.protocol import Call
from weftline.contract.steps import Step
from weftline.errors import WeftlineError
from weftline.kit import Claims, Planned, ReadValue, Result, RunFeed, Server
from weftline.kit.results import settled
from weftline.kit.retrieval_requests import AnswerSteps
from weftline.watching import Failed, Value


@dataclass(frozen=True, slots=True)
class Rest:
    """What follows the first call of a graph, and the variables that the client waits for."""

    calls: tuple[Call, ...]
    steps: tuple[Step, ...]
    watch: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Query:
    """One query of one engine, and its results: the embeddings, the hits and the answer.

    `ranked` has the best hits, if the engine ranks them. `part` is the value that the query was
    made of, if the engine's plan reads it.
    """

    option: Option
    embedded: Sequence[Result]
    hits: Result
    answer: Result | None
    part: Any = None
    ranked: Result | None = None

    def planned(self) -> Planned[str] | None:
        """The call that answers it; None if it was not sent ahead."""
        plan = self.option.plan
        if plan is None or self.answer is None:
            return None
        results: dict[Index, ReadValue] = {
            0: self.answer,
            Given.HITS: self.ranked or self.hits,
            Given.PART: settled(self.part),
        }
        return planned(plan, 0, self.option.fields, results)


class Composed(ABC):
    """One graph. It answers the calls of several LLMs, and the retrievers of several engines."""

    complete = False
    streams = False  # whether the last call's text may be read in parts
    last: CallPlan | None = None  # the calls that read all of it, if they are in the graph
    ranked: RankedNodes | None = None  # the nodes of all queries

    def __init__(
        self, decision: SelectorCall, options: Sequence[Option], server: Server, run: SessionRun
    ) -> None:
        self.decision = decision
        self.options = options
        self.run = run
        self.number = run.reserve(2)
        self.decided = variable(self.number)
        self._feed = RunFeed(server, self._note, run.alias)
        self._claims: Claims[str] = Claims([])
        self.found = Queries(self)

    @abstractmethod
    def rest(self) -> Rest:
        """What follows the first call. Raises Unplannable."""

    @abstractmethod
    def queries(self, decision: Any) -> Iterator[Query]:
        """The queries that a decision leads to. Raises TypeError or KeyError if it is a bad one."""

    def reads_of_last(self) -> dict[Index, ReadValue]:
        """The results of the last calls, and of what they read."""
        return {}

    @property
    def results(self) -> dict[str, Result]:
        """The results of the variables that the client waits for."""
        return self._feed.results

    def start(self) -> None:
        """Submit the graph. Raises Unplannable, and then nothing is submitted."""
        plan = self.decision.plan
        first = calls_of(plan, plan.llm.parameters(), Names(self.run, {0: self.decided}))
        rest = self.rest()
        calls, watch = (*first, *rest.calls), (self.decided, *rest.watch)
        self._feed.send(calls, watch, steps=rest.steps, parts=self.streams)
        self.run.join(self._feed)
        made = [planned(plan, 0, plan.llm.parameters(), {0: self.results[self.decided]})]
        if (last := self.last) is not None:
            fields, reads = last.llm.parameters(), self.reads_of_last()
            made += [planned(last, at, fields, reads) for at in range(len(last.drafts))]
        self._claims = Claims(made)

    @property
    def askings(self) -> list[Any]:
        """The LLMs' parts whose requests it may answer."""
        plans = [self.decision.plan, self.last, *(one.plan for one in self.options)]
        found = [plan.llm.asking for plan in plans if plan is not None]
        return list({id(asking): asking for asking in found}.values())

    def _note(self, event: Value | Failed) -> None:
        """Note the answers, so that later prompts of the run that contain one name its variable."""
        if not isinstance(event, Value):
            return
        if isinstance(event.value, str):
            self.run.answered(event.variable, event.value)
        listed = event.facts.get("items")
        for item, made in () if listed is None else zip(event.value, listed, strict=True):
            if isinstance(item, str) and made is not None:
                self.run.answered(made["semantic_var_id"], item)

    def claim(self, key: str) -> Result | None:
        """The result of the first call with this key that no request has claimed."""
        for claims in (self._claims, self.found.claims):
            made = claims.claim(key)
            if made is not None:
                return made.result
        return None

    def has(self, key: str) -> bool:
        """Whether it has a call with this key that no request has claimed."""
        return self._claims.has(key) or self.found.claims.has(key)

    @property
    def has_left(self) -> bool:
        """Whether there are calls that no request has claimed."""
        return self._claims.has_left

    def leave(self) -> None:
        """Note that no more requests will come. What nobody waits for is cancelled."""
        calls = [*self._claims.planned, *self.found.claims.planned]
        if not any(one.is_claimed and one.is_running for one in calls):
            self._feed.close()


class Queries:
    """The queries of a graph, from the moment when its first call has ended."""

    def __init__(self, graph: Composed) -> None:
        self._graph = graph
        self._lock = Lock()
        self._known: list[tuple[Query, NodeHits]] | None = None
        self._claims: Claims[str] = Claims([])

    @property
    def claims(self) -> Claims[str]:
        """The calls of the queries that are known."""
        self._look()
        return self._claims

    def covers(self, retriever: Any, query: Any) -> bool:
        """Whether what `retriever` asks for `query` was sent ahead."""
        return any(
            found.is_for(retriever, query) and not _has_failed(one.hits)
            for one, found in self._look()
        )

    def claim(self, server: Server, asked: AnswerSteps) -> Result | None:
        """The result for a retriever's request, if it is not claimed yet."""
        if (ranked := self._graph.ranked) is not None:
            best = ranked.claim(server, asked)
            if best is not None:
                return best
        found = (found.claim(server, asked) for _, found in self._look())
        return next((result for result in found if result is not None), None)

    def _look(self) -> list[tuple[Query, NodeHits]]:
        with self._lock:
            if self._known is not None:
                return self._known
            done = self._graph.results.get(self._graph.decided)
            if done is None or not done.value.done():
                return []
            self._known = []
            if _has_failed(done):
                return []
            try:
                decision = transforms.run(self._graph.decision.reading, done.value.result().value)
                queries = list(self._graph.queries(decision))
            except (WeftlineError, KeyError, TypeError, ValueError):
                return []  # LlamaIndex says itself that it cannot read the decision
            self._known = [
                (q, NodeHits(q.option.finding, q.embedded, q.hits, q.ranked)) for q in queries
            ]
            calls = (query.planned() for query in queries)
            self._claims = Claims([call for call in calls if call is not None])
            return self._known


def _has_failed(result: Result) -> bool:
    future = result.value
    return future.done() and (future.cancelled() or future.exception() is not None)
