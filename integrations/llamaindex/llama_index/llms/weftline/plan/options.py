"""The engines among which a program chooses, as one part of a graph.

The query's embedding does not depend on the choice, so it is made at once, and so are the searches.
A call is made for the engine that is chosen, and for no other one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import QueryBundle
from llama_index.llms.weftline.ahead.plan_calls import Names, calls_of
from llama_index.llms.weftline.ahead.request_claims import request_key
from llama_index.llms.weftline.plan.answer_symbols import Given, Index, Symbols
from llama_index.llms.weftline.plan.call_plan import CallPlan, Unplannable, can_plan, plan_on_hits
from llama_index.llms.weftline.plan.node_search import NodeSearch, finding_of_engine
from llama_index.llms.weftline.trace.run_provenance import SessionRun

from weftline.contract.protocol import Call
from weftline.contract.steps import Branch, Case, Source, Step
from weftline.kit import Server


@dataclass(frozen=True, slots=True)
class Option:
    """An engine that may be chosen, by the value `case`.

    `plan` is its only call, or None where it is not certain that it makes one.
    """

    case: str | int
    finding: NodeSearch
    plan: CallPlan | None
    streams: bool = False

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that every request of its LLM has."""
        assert self.plan is not None, "only a planned call has fields"
        found: dict[str, Any] = self.plan.llm.parameters()
        return found

    @property
    def call(self) -> str | None:
        """A key of its call. Options with equal keys make the same call on the same hits."""
        if self.plan is None:
            return None
        [draft] = self.plan.drafts
        return request_key(draft.messages, {**self.fields, **draft.fields})

    def about(self, query: QueryBundle) -> Option:
        """This option for a query that was not known before."""
        texts = tuple(query.embedding_strs)
        return replace(self, finding=replace(self.finding, query=query.query_str, texts=texts))


def option_of(
    engine: Any, case: str | int, query: QueryBundle, spare: int, symbols: Symbols, server: Server
) -> Option | None:
    """An engine as an option; None if its search is not one of this server.

    The texts of `query` may be symbols. Then `spare` are the most tokens of the query.
    """
    if type(engine) is not RetrieverQueryEngine:
        return None
    finding = finding_of_engine(engine, query)
    if finding is None or finding.server.place != server.place:
        return None
    synthesizer = engine._response_synthesizer
    if not knows_nodes(engine, finding) or not can_plan(synthesizer):
        return Option(case, finding, None)
    if not is_sent_ahead(synthesizer._llm, server):
        return Option(case, finding, None)
    try:
        # The query stands beside the nodes, so it takes room from them.
        tokens = finding.node_tokens + -(-spare // finding.k)
        plan = plan_on_hits(synthesizer, query.query_str, finding.k, tokens, symbols)
    except Unplannable:
        return Option(case, finding, None)
    if len(plan.drafts) > 1:
        return Option(case, finding, None)  # a list of parts has one answer for each
    return Option(case, finding, plan, bool(synthesizer._streaming))


def knows_nodes(engine: Any, finding: NodeSearch) -> bool:
    """Whether the finding has all that becomes of the nodes before the engine's first call."""
    return len(engine._node_postprocessors) == (0 if finding.rerank is None else 1)


def is_sent_ahead(llm: Any, server: Server) -> bool:
    """Whether calls of this LLM are sent ahead to `server`, as the LLM itself would send them."""
    return (
        hasattr(llm, "asking")
        and llm.ahead
        and getattr(llm, "rate_limiter", None) is None  # LlamaIndex 0.14.12 has none
        and llm.asking.server.way == server.way
    )


@dataclass(frozen=True, slots=True)
class Chosen:
    """How the graph knows which option is taken: a value that equals the option's case.

    Otherwise `default` is taken, a variable that holds no hits.
    """

    on: Source
    default: str

    def branch(self, sides: Mapping[str | int, str], out: str) -> Branch:
        """A branch that takes the side of the chosen case."""
        cases = (Case(when={"op": "equals", "value": at}, take=to) for at, to in sides.items())
        return Branch(on=self.on, cases=tuple(cases), default=self.default, out=out)


@dataclass(frozen=True, slots=True)
class OptionGraph:
    """Calls and steps, and the variables of the embedding, the hits and the answer.

    `ranked` is the variable of the best hits, if all options rank them alike. `answer` is None if
    no option has a planned call.
    """

    calls: tuple[Call, ...]
    steps: tuple[Step, ...]
    embedded: str
    hits: str
    ranked: str | None
    answer: str | None


def choice(
    options: Sequence[Option], query: Source, chosen: Chosen, run: SessionRun, suffix: str
) -> OptionGraph:
    """The graph of the options for a query.

    The names of its variables end with `suffix`. Raises Unplannable if the options have several
    embedding models.
    """
    embedded, hits = f"embedded{suffix}", f"hits{suffix}"
    found = [one.finding.steps([embedded], "", [query]) for one in options]
    embed = found[0][0]
    if any(first != embed for first, *_ in found):
        raise Unplannable("the engines have several embedding models")
    searches: dict[Step, str] = {}
    for *_, search in found:
        searches.setdefault(search, f"found{suffix}_{len(searches)}")
    by_case = {one.case: searches[s] for one, (*_, s) in zip(options, found, strict=True)}
    steps: list[Step] = [embed, *(replace(search, out=out) for search, out in searches.items())]
    steps.append(chosen.branch(by_case, hits))
    ranking = _ranking(options, query, hits, f"ranked{suffix}")
    ranked = ranking[0].out if ranking else None
    calls, deciding, answer = _calls(options, by_case, query, chosen, run, suffix, ranked)
    # A branch that ends the calls of the other options is decided first.
    steps = [*deciding, *steps, *ranking]
    return OptionGraph(tuple(calls), tuple(steps), embedded, hits, ranked, answer)


def _ranking(options: Sequence[Option], query: Source, hits: str, ranked: str) -> tuple[Step, ...]:
    """The step that ranks what the chosen option has found, if all options rank alike."""
    if any(one.finding.rerank is None for one in options):
        return ()
    first, *others = [one.finding.ranking(hits, ranked, query) for one in options]
    return first if all(one == first for one in others) else ()


def _calls(
    options: Sequence[Option],
    by_case: Mapping[str | int, str],
    query: Source,
    chosen: Chosen,
    run: SessionRun,
    suffix: str,
    ranked: str | None,
) -> tuple[list[Call], list[Step], str | None]:
    """A call for each group of options that make the same one, behind a branch that opens it."""
    groups: dict[str, list[Option]] = {}
    for one in options:
        if one.call is not None:
            groups.setdefault(one.call, []).append(one)
    if not groups or (len(groups) > 1 and any(one.streams for one in options)):
        return [], [], None  # only the text of a call is streamed, and not that of a branch
    ranks = any(one.finding.rerank is not None for one in options)
    if ranks and (ranked is None or any(one.call not in groups for one in options)):
        return [], [], None  # a call reads what its own option ranks
    if ranks and len(groups) > 1:
        return [], [], None
    answer = f"answer{suffix}"
    calls: list[Call] = []
    steps: list[Step] = []
    sides: dict[str | int, str] = {}
    for number, group in enumerate(groups.values()):
        reads, writes = ranked or f"hits{suffix}", answer
        if len(group) < len(options):
            reads = f"open{suffix}_{number}"
            steps.append(chosen.branch({one.case: by_case[one.case] for one in group}, reads))
        if len(groups) > 1:
            writes = f"answer{suffix}_{number}"
        sides.update({one.case: writes for one in group})
        plan = group[0].plan
        assert plan is not None, "options with a key have a plan"
        names: dict[Index, str] = {0: writes, Given.HITS: reads}
        if query.var is not None:
            names[Given.PART] = query.var
        calls += calls_of(plan, group[0].fields, Names(run, names))
    if len(groups) > 1:
        steps.insert(0, chosen.branch(sides, answer))
    return calls, steps, answer
