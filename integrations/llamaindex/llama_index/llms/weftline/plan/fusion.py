"""The graph of a QueryFusionRetriever: the call that writes queries, and the searches for each.

The server searches for each query when its line ends. LlamaIndex fuses what was found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llama_index.core.llms.llm import default_completion_to_prompt
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import QueryBundle
from llama_index.llms.weftline.ahead.composition import Composed, Query, Rest
from llama_index.llms.weftline.model.object_fields import wanted
from llama_index.llms.weftline.plan.answer_symbols import Spec
from llama_index.llms.weftline.plan.call_plan import CallPlan, PlannedCall, Unplannable
from llama_index.llms.weftline.plan.node_search import finding_of
from llama_index.llms.weftline.plan.options import Option
from llama_index.llms.weftline.plan.selector import SelectorCall, text_plan
from llama_index.llms.weftline.trace.run_provenance import MIN_SEARCHED, SessionRun

from weftline.contract import transforms
from weftline.contract.steps import Source, Step
from weftline.kit import Server
from weftline.kit.pieces import by_search
from weftline.kit.results import item_of, rows_of

LINES: Spec = {"op": "line_list"}


def is_fusion(retriever: object) -> bool:
    """Whether it is a retriever whose call for queries is known."""
    return type(retriever) is QueryFusionRetriever and retriever.num_queries > 1


@dataclass(frozen=True, slots=True)
class _Searches:
    """The variables of one retriever's searches: for the query itself, and for those written."""

    embedded: str
    hits: str
    embedded_lines: str
    hits_of_lines: str


class Fused(Composed):
    """The call for queries, and of each retriever of this server the search for every query."""

    def __init__(self, retriever: Any, query: QueryBundle, server: Server, run: SessionRun) -> None:
        findings = (finding_of(one, query) for one in retriever._retrievers)
        options = [
            Option(number, found, None)
            for number, found in enumerate(findings)
            if found is not None and found.server.place == server.place and len(found.texts) == 1
        ]
        if not options:
            raise Unplannable("its retrievers search no store of this server")
        super().__init__(SelectorCall(_asking(retriever, query), ()), options, server, run)
        self._query = query
        self._most = retriever.num_queries - 1
        self._searches = [
            _Searches(*(f"{name}_{self.number}_{option.case}" for name in _Searches.__slots__))
            for option in options
        ]

    def rest(self) -> Rest:
        """The embeddings and searches of each retriever."""
        lines = Source(var=self.decided, transforms=(dict(LINES),))
        steps: list[Step] = []
        watch: list[str] = []
        for option, names in zip(self.options, self._searches, strict=True):
            finding = option.finding
            steps += finding.steps([names.embedded], names.hits)
            steps += finding.steps([names.embedded_lines], names.hits_of_lines, [lines])
            watch += [names.embedded, names.hits, names.embedded_lines, names.hits_of_lines]
        return Rest((), tuple(steps), tuple(watch))

    def queries(self, decision: str) -> Iterator[Query]:
        """The query itself, and those that LlamaIndex reads of the answer, for each retriever."""
        lines = transforms.run((LINES,), decision)
        said = [line.strip() for line in decision.strip("`").split("\n") if line.strip()]
        places = [lines.index(text) for text in said[: self._most] if text in lines]
        for option, names in zip(self.options, self._searches, strict=True):
            results = self.results
            yield Query(option, [results[names.embedded]], results[names.hits], None)
            for at in places:
                embedded = rows_of(results[names.embedded_lines], at, at + 1)
                hits = item_of(results[names.hits_of_lines], at)
                yield Query(option.about(QueryBundle(lines[at])), [embedded], hits, None)


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
