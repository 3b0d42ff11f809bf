"""The graph of a QueryFusionRetriever: the call that writes queries, the searches, and the fusion.

The server searches for each query when its line ends, and fuses as LlamaIndex does. With an engine
around the retriever it ranks the nodes and makes the engine's calls on them. LlamaIndex still asks
for each of these, and fuses by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llama_index.core.llms.llm import default_completion_to_prompt
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.schema import QueryBundle
from llama_index.llms.weftline.ahead.composition import Composed, Query, Rest
from llama_index.llms.weftline.ahead.plan_calls import Names, calls_of, variable
from llama_index.llms.weftline.model.object_fields import wanted
from llama_index.llms.weftline.plan.answer_symbols import Given, Index, Spec
from llama_index.llms.weftline.plan.call_plan import (
    CallPlan,
    PlannedCall,
    Unplannable,
    can_plan,
    plan_on_hits,
)
from llama_index.llms.weftline.plan.node_rerank import RankedNodes, rank_step, rerank_of
from llama_index.llms.weftline.plan.node_search import finding_of
from llama_index.llms.weftline.plan.options import Option, is_sent_ahead
from llama_index.llms.weftline.plan.selector import SelectorCall, text_plan
from llama_index.llms.weftline.trace.run_provenance import MIN_SEARCHED, SessionRun

from weftline.contract import transforms
from weftline.contract.protocol import Call
from weftline.contract.steps import MAX_K, Merge, Source, Step
from weftline.kit import ReadValue, Server
from weftline.kit.fused_hits import FusedHits
from weftline.kit.pieces import by_search
from weftline.kit.results import item_of, rows_of

# The step's name for each of LlamaIndex's modes.
RANKS: Mapping[FUSION_MODES, Any] = {
    FUSION_MODES.RECIPROCAL_RANK: "reciprocal",
    FUSION_MODES.RELATIVE_SCORE: "relative",
    FUSION_MODES.DIST_BASED_SCORE: "distribution",
    FUSION_MODES.SIMPLE: "score",
}
_WEIGHED = ("relative", "distribution")


def is_fusion(retriever: object) -> bool:
    """Whether it is a retriever whose call for queries is known."""
    return type(retriever) is QueryFusionRetriever and retriever.num_queries > 1


class Fused(Composed):
    """The call for queries, the search of each retriever of this server for every query, and what
    `engine` does with the nodes, if all retrievers are of this server."""

    def __init__(
        self, retriever: Any, query: QueryBundle, server: Server, run: SessionRun, engine: Any
    ) -> None:
        findings = (finding_of(one, query) for one in retriever._retrievers)
        options = [
            Option(number, found, None)
            for number, found in enumerate(findings)
            if found is not None and found.server.place == server.place and len(found.texts) == 1
        ]
        if not options:
            raise Unplannable("its retrievers search no store of this server")
        super().__init__(SelectorCall(_asking(retriever, query), ()), options, server, run)
        self._retriever = retriever
        self._query = query.query_str
        self._server = server
        most = retriever.num_queries - 1
        self._lines: Spec = {"op": "query_list", "most": most, "first": self._query}
        self._fused = f"fused_{self.number}"
        self._best = f"ranked_{self.number}"
        self._rerank = None
        if engine is not None and len(options) == len(retriever._retrievers):
            self._rerank = rerank_of(engine._node_postprocessors, server)
            known = len(engine._node_postprocessors) == (0 if self._rerank is None else 1)
            self.last = self._synthesis(engine._response_synthesizer) if known else None
            self.streams = self.last is not None and bool(engine._response_synthesizer._streaming)

    def asks(self, retriever: Any, query: Any) -> bool:
        """Whether the queries of `retriever` were sent ahead."""
        return retriever is self._retriever and getattr(query, "query_str", query) == self._query

    def _synthesis(self, synthesizer: Any) -> CallPlan | None:
        """The calls on the nodes; None if they are not certain."""
        if not can_plan(synthesizer) or not is_sent_ahead(synthesizer._llm, self._server):
            return None
        kept = self._retriever.similarity_top_k
        kept = kept if self._rerank is None else min(kept, self._rerank.top_n)
        tokens = max(one.finding.node_tokens for one in self.options)
        try:
            plan = plan_on_hits(synthesizer, self._query, kept, tokens)
            self._calls(plan)
        except Unplannable:
            return None
        return plan

    def _names(self, plan: CallPlan) -> Names:
        found = self._fused if self._rerank is None else self._best
        names: dict[Index, str] = {Given.HITS: found}
        for at in range(len(plan.drafts)):
            names[at] = f"{variable(self.number + 1)}_{at}"
        return Names(self.run, names)

    def _calls(self, plan: CallPlan) -> tuple[Call, ...]:
        return calls_of(plan, plan.llm.parameters(), self._names(plan))

    def reads_of_last(self) -> dict[Index, ReadValue]:
        """The results of the calls on the nodes, and the nodes."""
        assert self.last is not None, "there are such calls"
        names = self._names(self.last).by_index
        found: dict[Index, ReadValue] = {
            at: self.results[name] for at, name in names.items() if name in self.results
        }
        return {Given.HITS: self._fused_hits(), **found}

    def rest(self) -> Rest:
        """The searches, the fusion, the reranking, and the calls on the nodes."""
        lines = Source(var=self.decided, transforms=(dict(self._lines),))
        steps: list[Step] = []
        watch: list[str] = []
        for option in self.options:
            embedded, hits = self._search(option)
            steps += option.finding.steps([embedded], hits, [lines])
            watch += [embedded, hits]
        fuses = self._rerank is not None or self.last is not None
        if fuses:
            steps.append(self._fusion())
        if self._rerank is not None:
            query = Source(value=self._query)
            steps.append(rank_step(self._rerank, query, self._fused, self._best))
            watch.append(self._best)
        if self.last is None:
            return Rest((), tuple(steps), tuple(watch))
        calls = self._calls(self.last)
        answers = [self._names(self.last).variable(at) for at in range(len(calls))]
        return Rest(calls, tuple(steps), (*watch, *answers))

    def _search(self, option: Option) -> tuple[str, str]:
        """The variables of a retriever's embeddings and hits: a list for each query."""
        return f"embedded_{self.number}_{option.case}", f"hits_{self.number}_{option.case}"

    def _fusion(self) -> Merge:
        """LlamaIndex's fusion of all hits. Raises Unplannable for a mode that it does not have."""
        retriever = self._retriever
        if retriever.mode not in RANKS or not 1 <= retriever.similarity_top_k <= MAX_K:
            raise Unplannable("its fusion is not known")
        rank = RANKS[FUSION_MODES(retriever.mode)]
        first, *beside = [Source(var=self._search(option)[1]) for option in self.options]
        return Merge(
            in_=first,
            out=self._fused,
            by="node",
            limit=retriever.similarity_top_k,
            rank=rank,
            beside=tuple(beside),
            weights=tuple(retriever._retriever_weights) if rank in _WEIGHED else (),
            share=retriever.num_queries,
        )

    def _fused_hits(self) -> FusedHits:
        found = tuple(self.results[self._search(option)[1]] for option in self.options)
        return FusedHits(self._fusion(), found)

    def start(self) -> None:
        """Submit the graph. Raises Unplannable, and then nothing is submitted."""
        super().start()
        if self._rerank is not None:
            best = self.results[self._best]
            self.ranked = RankedNodes(self._rerank, self._query, self._fused_hits(), best)

    def queries(self, decision: str) -> Iterator[Query]:
        """The queries that LlamaIndex asks, for each retriever. It may ask one twice."""
        listed: list[str] = transforms.run((self._lines,), decision)
        said = decision.strip("`").split("\n")
        asked = [line.strip() for line in said if line.strip()][: self._lines["most"]]
        for option in self.options:
            embedded, hits = (self.results[name] for name in self._search(option))
            for at in map(listed.index, (self._query, *asked)):
                about = option.about(QueryBundle(listed[at]))
                yield Query(about, [rows_of(embedded, at, at + 1)], item_of(hits, at), None)


def _asking(retriever: Any, query: QueryBundle) -> CallPlan:
    """The call that writes queries, as `llm.complete` makes it. Raises Unplannable."""
    llm = retriever._llm
    if llm.completion_to_prompt is not default_completion_to_prompt:
        raise Unplannable("a function of the user makes the prompt")
    prompt = retriever.query_gen_prompt.format(
        num_queries=retriever.num_queries - 1, query=query.query_str
    )
    plan = text_plan(llm)
    role = "user" if llm.is_chat_model else ""
    pieces = by_search(prompt, [("query", query.query_str)], MIN_SEARCHED)
    plan.drafts.append(PlannedCall("queries", ((role, prompt),), (pieces,), wanted([prompt])))
    return plan
