"""The graphs of RouterQueryEngine and SubQuestionQueryEngine.

A router's graph has the call of its selector, a branch, and the chosen engine's query. A graph of
sub-questions has the call that divides the query, the query of each part, and the call on their
answers. Both end where a prompt is not certain to the letter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from llama_index.core.query_engine import RouterQueryEngine, SubQuestionQueryEngine
from llama_index.core.schema import QueryBundle
from llama_index.llms.weftline.ahead.composition import Composed, Query, Rest
from llama_index.llms.weftline.ahead.plan_calls import Names, calls_of, variable
from llama_index.llms.weftline.plan.answer_symbols import Given, Index, PlannedAnswer, Spec, Symbols
from llama_index.llms.weftline.plan.call_plan import (
    CallPlan,
    Unplannable,
    can_plan,
    packs,
    plan_on_one,
)
from llama_index.llms.weftline.plan.options import (
    Chosen,
    Option,
    choice,
    is_sent_ahead,
    option_of,
)
from llama_index.llms.weftline.plan.selector import division_of, selection_of
from llama_index.llms.weftline.trace.run_provenance import SessionRun

from weftline.contract.protocol import Call
from weftline.contract.steps import Body, Each, Source, Text
from weftline.kit import ReadValue, Server
from weftline.kit.results import LOST, item_of

ITEM = "part"  # the variable of a part in the body that runs for it
QUESTION: Spec = {"op": "path", "keys": ["sub_question"]}
TOOL: Spec = {"op": "path", "keys": ["tool_name"]}
# LlamaIndex strips each part when it packs them.
STRIP_END: Spec = {"op": "text", "method": "rstrip"}
JOINED: Spec = {"op": "join", "separator": "\n\n"}
MAX_PARTS = 32
# The call on all answers is sent ahead if so many of the longest answers fit into its prompt: as
# many as LlamaIndex's own example has.
LIKELY_PARTS = 4
# LlamaIndex's words around a part and its answer (SubQuestionQueryEngine._construct_node).
BEFORE_PART, BEFORE_ANSWER = "Sub question: ", "\nResponse: "
WORDS = 16  # tokens of these words and of the blank line behind them


def can_route(engine: object) -> bool:
    """Whether queries of this engine may be sent ahead with those of the engines behind it."""
    return type(engine) in (RouterQueryEngine, SubQuestionQueryEngine)


def decider_of(engine: Any) -> Any:
    """The LLM of the first call."""
    if type(engine) is SubQuestionQueryEngine:
        return getattr(engine._question_gen, "_llm", None)
    selector = engine._selector
    program = getattr(selector, "_selector_program", None)
    return getattr(selector if program is None else program, "_llm", None)


def graph_of(engine: Any, query: QueryBundle, server: Server, run: SessionRun) -> Composed:
    """The graph of a query. Raises Unplannable."""
    if type(engine) is SubQuestionQueryEngine:
        return Divided(engine, query.query_str, server, run)
    return Routed(engine, query.query_str, server, run)


class Routed(Composed):
    """A router's selection, and the query of the engine that it selects."""

    def __init__(self, engine: Any, query: str, server: Server, run: SessionRun) -> None:
        decision = selection_of(engine._selector, engine._metadatas, query)
        numbered, symbols = enumerate(engine._query_engines, 1), Symbols()
        asked = QueryBundle(query)
        found = (option_of(one, at, asked, 0, symbols, server) for at, one in numbered)
        options = [option for option in found if option is not None]
        if not options:
            raise Unplannable("no engine searches a store of this server")
        super().__init__(decision, _like(options), server, run)
        self.streams = any(option.streams for option in options)
        self._query = query

    def rest(self) -> Rest:
        """The searches, a branch, and the selected engine's call."""
        on = Source(var=self.decided, transforms=tuple(map(dict, self.decision.reading)))
        chosen = Chosen(on, default=self.decided)
        query = Source(value=self._query)
        made = choice(self.options, query, chosen, self.run, f"_{self.number + 1}")
        self._made = made
        watch = (made.embedded, made.hits, made.ranked, made.answer)
        return Rest(made.calls, made.steps, tuple(name for name in watch if name is not None))

    def queries(self, decision: Any) -> Iterator[Query]:
        """The query of the selected engine."""
        for one in self.options:
            if one.case == decision:
                made, results = self._made, self.results
                answer = None if made.answer is None else results[made.answer]
                ranked = None if made.ranked is None else results[made.ranked]
                embedded, hits = [results[made.embedded]], results[made.hits]
                yield Query(one, embedded, hits, answer, ranked=ranked)


def _like(options: Sequence[Option]) -> list[Option]:
    """The options whose embedding model is that of the first one."""
    first = options[0].finding
    engine = first.embedding(first.query)
    return [one for one in options if one.finding.embedding(first.query) == engine]


class Divided(Composed):
    """Sub-questions, the query of each, and the call on their answers."""

    def __init__(self, engine: Any, query: str, server: Server, run: SessionRun) -> None:
        decision = division_of(engine._question_gen, engine._metadatas, query)
        symbols = Symbols()
        question = QueryBundle(symbols.text(PlannedAnswer(Given.PART, (QUESTION,))))
        spare = decision.plan.longest_answer
        engines = engine._query_engines.items()
        found = [option_of(one, name, question, spare, symbols, server) for name, one in engines]
        options = [option for option in found if option is not None]
        if not options:
            raise Unplannable("no engine searches a store of this server")
        super().__init__(decision, _like(options), server, run)
        self.streams = bool(engine._response_synthesizer._streaming)
        self._combined = variable(self.number + 1)
        # The lists of the variables of the parts.
        self._names = {
            "embedded": f"embedded_{self.number}",
            "hits": f"hits_{self.number}",
            "ranked": f"ranked_{self.number}",
            "answer": f"answers_{self.number}",
            "pair": f"pairs_{self.number}",
        }
        if any(one.plan is None for one in self.options):  # a part without an answer has no hits
            self.options = [replace(one, plan=None) for one in self.options]
        planned = [one for one in self.options if one.plan is not None]
        all_known = len(planned) == len(engine._query_engines)
        self.last = self._last_call(engine, query, server) if all_known else None

    def _last_call(self, engine: Any, query: str, server: Server) -> CallPlan | None:
        """The call on all answers; None if its prompt is not certain."""
        synthesizer = engine._response_synthesizer
        if not can_plan(synthesizer) or not packs(synthesizer):
            return None
        if not is_sent_ahead(synthesizer._llm, server):
            return None
        plans = [one.plan for one in self.options if one.plan is not None]
        texts = all(plan.reading == () and plan.output_cls is None for plan in plans)
        if not texts or any(one.streams for one in self.options):
            return None  # str() of what these engines give is another text
        longest = max(plan.longest_answer for plan in plans) + WORDS
        tokens = LIKELY_PARTS * longest + self.decision.plan.longest_answer
        try:
            plan = plan_on_one(synthesizer, query, PlannedAnswer(Given.PAIRS, (JOINED,)), tokens)
            self._combining(plan)
        except Unplannable:
            return None
        return plan

    def _combining(self, plan: CallPlan) -> tuple[Call, ...]:
        """The call on all answers. Raises Unplannable for fields that calls do not have."""
        names = Names(self.run, {0: self._combined, Given.PAIRS: self._names["pair"]})
        return calls_of(plan, plan.llm.parameters(), names)

    def reads_of_last(self) -> dict[Index, ReadValue]:
        """The router's result, and the texts of the parts with their answers."""
        pairs = self.results[self._names["pair"]]
        return {0: self.results[self._combined], Given.PAIRS: pairs}

    def rest(self) -> Rest:
        """An `each` over the parts, and the call on their answers."""
        question = Source(var=ITEM, transforms=(dict(QUESTION),))
        chosen = Chosen(Source(var=ITEM, transforms=(dict(TOOL),)), default=ITEM)
        made = choice(self.options, question, chosen, self.run, "")
        calls, steps = made.calls, list(made.steps)
        collect = {made.embedded: self._names["embedded"], made.hits: self._names["hits"]}
        if made.ranked is not None:
            collect[made.ranked] = self._names["ranked"]
        if made.answer is not None:
            collect[made.answer] = self._names["answer"]
        if self.last is not None:
            before = Source(value=BEFORE_PART), question, Source(value=BEFORE_ANSWER)
            answer = Source(var=made.answer, transforms=(dict(STRIP_END),))
            steps.append(Text(parts=(*before, answer), out="pair"))
            collect["pair"] = self._names["pair"]
        each = Each(
            name="parts",
            over=Source(var=self.decided, transforms=tuple(map(dict, self.decision.reading))),
            item=ITEM,
            body=Body(calls=calls, steps=tuple(steps)),
            collect=collect,
            max_items=MAX_PARTS,
            on_error="value",
            otherwise=LOST,
        )
        last = () if self.last is None else self._combining(self.last)
        watch = (*collect.values(), *(self._combined for _ in last))
        return Rest(last, (each,), watch)

    def queries(self, decision: Any) -> Iterator[Query]:
        """The query of each part."""
        names, results = self._names, self.results
        answers, ranked = results.get(names["answer"]), results.get(names["ranked"])
        options = {one.case: one for one in self.options}
        for index, part in enumerate(decision):
            option = options.get(part["tool_name"])
            if option is not None:
                yield Query(
                    option.about(QueryBundle(part["sub_question"])),
                    [item_of(results[names["embedded"]], index)],
                    item_of(results[names["hits"]], index),
                    None if answers is None else item_of(answers, index),
                    part,
                    None if ranked is None else item_of(ranked, index),
                )
