"""The graph of a query that a call rewrites first: the call, and the engine's query after it.

HyDE writes a passage that could answer the query, and searches with both. A decomposing transform
writes another query. FLARE writes the next words of the answer, with a query in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llama_index.core.indices.query.query_transform import (
    DecomposeQueryTransform,
    HyDEQueryTransform,
)
from llama_index.core.indices.query.query_transform.base import StepDecomposeQueryTransform
from llama_index.core.query_engine import (
    FLAREInstructQueryEngine,
    MultiStepQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.query_engine.flare.answer_inserter import LLMLookaheadAnswerInserter
from llama_index.core.query_engine.flare.output_parser import (
    IsDoneOutputParser,
    QueryTaskOutputParser,
)
from llama_index.core.query_engine.multistep_query_engine import default_stop_fn
from llama_index.core.schema import QueryBundle
from llama_index.llms.weftline.ahead.composition import Composed, Query, Rest
from llama_index.llms.weftline.ahead.plan_calls import Names, calls_of, variable
from llama_index.llms.weftline.plan.answer_symbols import Given, Index, PlannedAnswer, Spec, Symbols
from llama_index.llms.weftline.plan.call_plan import STRIP, CallPlan, Unplannable
from llama_index.llms.weftline.plan.node_search import embedded_in, found_in, ranked_in
from llama_index.llms.weftline.plan.options import Option, is_sent_ahead, option_of
from llama_index.llms.weftline.plan.selector import SelectorCall, text_plan
from llama_index.llms.weftline.trace.run_provenance import SessionRun

from weftline.contract import transforms
from weftline.contract.protocol import Call
from weftline.contract.steps import Branch, Case, Source, Step
from weftline.kit import ReadValue, Server

LOWER: Spec = {"op": "text", "method": "lower"}
# The query in the first tag of a text, such as "[Search(Who?)]" (QueryTaskOutputParser).
QUERY_OF_TAG: tuple[Spec, ...] = (
    STRIP,
    {"op": "text", "method": "split", "args": ["]", 1]},
    {"op": "path", "keys": [0]},
    {"op": "text", "method": "rsplit", "args": ["[", 1]},
    {"op": "path", "keys": [1]},
    {"op": "text", "method": "split", "args": ["("]},
    {"op": "path", "keys": [1]},
    {"op": "text", "method": "split", "args": [")"]},
    {"op": "path", "keys": [0]},
)

_TRANSFORMS = (HyDEQueryTransform, DecomposeQueryTransform, StepDecomposeQueryTransform)


@dataclass(frozen=True, slots=True)
class Rewriting:
    """The call that writes, and what `engine` is asked for its answer.

    `make` makes the query of the text that the transforms `reading` find in the answer. The engine
    is not asked if the answer contains `stop`, in lower case. `then` plans the call on the answer
    and the engine's reply.
    """

    plan: CallPlan
    engine: Any
    make: Callable[[str], QueryBundle]
    reading: tuple[Spec, ...] = ()
    stop: str | None = None
    then: Callable[[PlannedAnswer, PlannedAnswer], CallPlan] | None = None


def is_transform(transform: object) -> bool:
    """Whether it is a transform whose call is known."""
    return type(transform) in _TRANSFORMS


def transformed(transform: Any, arguments: Mapping[str, Any], engine: Any) -> Rewriting | None:
    """What `engine` is about to ask for what `transform` makes of its query.

    None where that is not known. Raises Unplannable.
    """
    stop = None
    if type(engine) is MultiStepQueryEngine and engine._stop_fn is default_stop_fn:
        stop = "none"  # in default_stop_fn
    elif type(engine) is not TransformQueryEngine:
        return None
    query, metadata = arguments["query_bundle"], arguments.get("metadata") or {}
    plan, asked = text_plan(transform._llm), query.query_str
    given = {"query_str": asked, "context_str": metadata.get("index_summary", "None")}
    texts = query.custom_embedding_strs

    def hyde(said: str) -> QueryBundle:
        rest = query.embedding_strs if transform._include_original else []
        return QueryBundle(asked, custom_embedding_strs=[said, *rest])

    def decomposed(said: str) -> QueryBundle:
        return QueryBundle(said, custom_embedding_strs=[said])

    def next_step(said: str) -> QueryBundle:
        return QueryBundle(said, custom_embedding_strs=texts)

    if type(transform) is HyDEQueryTransform:
        plan.predict("passage", transform._hyde_prompt, context_str=asked)
        return Rewriting(plan, engine._query_engine, hyde, stop=stop)
    if type(transform) is DecomposeQueryTransform:
        plan.predict("rewrite", transform._decompose_query_prompt, **given)
        return Rewriting(plan, engine._query_engine, decomposed, stop=stop)
    before = metadata.get("prev_reasoning")
    given["prev_reasoning"] = f"\n{before}" if before else "None"
    plan.predict("rewrite", transform._step_decompose_query_prompt, **given)
    return Rewriting(plan, engine._query_engine, next_step, stop=stop)


def looked_ahead(llm: Any, arguments: Mapping[str, Any], engine: Any) -> Rewriting | None:
    """What FLARE is about to ask for the next words of its answer; None for any other call.

    Raises Unplannable.
    """
    if type(engine) is not FLAREInstructQueryEngine or engine._llm is not llm:
        return None
    prompt, given = arguments.get("prompt"), arguments.get("prompt_args")
    if prompt is not engine._instruct_prompt or not isinstance(given, Mapping):
        return None
    parsers = type(engine._done_output_parser), type(engine._query_task_output_parser)
    if parsers != (IsDoneOutputParser, QueryTaskOutputParser):
        raise Unplannable("other parsers read the words")
    if engine._max_lookahead_query_tasks != 1:
        raise Unplannable("several queries may follow")
    plan = text_plan(llm)
    plan.predict("lookahead", prompt, **given)
    inserter: Any = engine._lookahead_answer_inserter

    def inserted(said: PlannedAnswer, reply: PlannedAnswer) -> CallPlan:
        last = text_plan(inserter._llm)
        query, answer = last.symbols.text(said.then(*QUERY_OF_TAG)), last.symbols.text(reply)
        last.predict(
            "insert",
            inserter._answer_insert_prompt,
            lookahead_response=last.symbols.text(said.then(STRIP)),
            query_answer_pairs=f"Query: {query}\nAnswer: {answer}\n",
            prev_response=given.get("existing_answer") or "",
        )
        return last

    then = inserted if type(inserter) is LLMLookaheadAnswerInserter else None
    return Rewriting(plan, engine._query_engine, QueryBundle, QUERY_OF_TAG, "done", then)


class Rewritten(Composed):
    """A call, the query of an engine for its answer, and the call on both."""

    def __init__(self, rewriting: Rewriting, server: Server, run: SessionRun) -> None:
        """Raises Unplannable."""
        symbols = Symbols()
        said = symbols.text(PlannedAnswer(Given.PART, rewriting.reading))
        query = rewriting.make(said)
        spare = rewriting.plan.longest_answer if said in query.query_str else 0
        option = option_of(rewriting.engine, 0, query, spare, symbols, server)
        if option is None:
            raise Unplannable("the engine searches no store of this server")
        super().__init__(SelectorCall(rewriting.plan, ()), [option], server, run)
        self.streams = option.streams
        self._rewriting = rewriting
        self._said = said
        self._embedded = embedded_in(self.number + 1, option.finding.texts)
        self._hits = found_in(self.number + 1)
        self._ranked = None if option.finding.rerank is None else ranked_in(self.number + 1)
        self._answer = variable(self.number + 1)
        self._after = f"after_{self.number}"
        self.last = self._last_call(option, server)

    def _last_call(self, option: Option, server: Server) -> CallPlan | None:
        """The call on the answer and the reply; None if its prompt is not certain."""
        then, plan = self._rewriting.then, option.plan
        if then is None or plan is None or plan.reading != () or plan.output_cls is not None:
            return None
        try:
            last = then(PlannedAnswer(Given.PART), PlannedAnswer(Given.REPLY))
            self._last_calls(last)
        except Unplannable:
            return None
        return last if is_sent_ahead(last.llm, server) and not option.streams else None

    def _last_calls(self, last: CallPlan) -> tuple[Call, ...]:
        names = Names(self.run, self._names_of_last)
        return calls_of(last, last.llm.parameters(), names)

    @property
    def _names_of_last(self) -> dict[Index, str]:
        return {0: self._after, Given.PART: self.decided, Given.REPLY: self._answer}

    def reads_of_last(self) -> dict[Index, ReadValue]:
        """The rewriter's result, the answer and the reply."""
        return {index: self.results[name] for index, name in self._names_of_last.items()}

    def rest(self) -> Rest:
        """The embeddings, the search, the engine's call, and the call on its reply."""
        [option], rewriting = self.options, self._rewriting
        said = Source(var=self.decided, transforms=tuple(map(dict, rewriting.reading)))
        texts = option.finding.texts
        sources = [said if text == self._said else Source(value=text) for text in texts]
        found = self._hits if rewriting.stop is None else f"found_{self.number + 1}"
        steps: tuple[Step, ...] = option.finding.steps(self._embedded, found, sources)
        if rewriting.stop is not None:
            on = Source(var=self.decided, transforms=(dict(LOWER),))
            stop = Case(when={"op": "contains", "value": rewriting.stop}, take=self.decided)
            steps = (*steps, Branch(on=on, cases=(stop,), default=found, out=self._hits))
        watch = [*self._embedded, self._hits]
        if self._ranked is not None:
            about = said if option.finding.query == self._said else None
            steps = (*steps, *option.finding.ranking(self._hits, self._ranked, about))
            watch.append(self._ranked)
        if option.plan is None:
            return Rest((), steps, tuple(watch))
        names: dict[Index, str] = {
            0: self._answer,
            Given.HITS: self._ranked or self._hits,
            Given.PART: self.decided,
        }
        calls = calls_of(option.plan, option.fields, Names(self.run, names))
        if self.last is None:
            return Rest(calls, steps, (*watch, self._answer))
        calls = (*calls, *self._last_calls(self.last))
        return Rest(calls, steps, (*watch, self._answer, self._after))

    def queries(self, decision: str) -> Iterator[Query]:
        """The query for what the call has said. Raises TransformFailed if it has no query."""
        [option], results = self.options, self.results
        text = transforms.run(self._rewriting.reading, decision)
        embedded = [results[name] for name in self._embedded]
        about = option.about(self._rewriting.make(text))
        ranked = None if self._ranked is None else results[self._ranked]
        answer = results.get(self._answer)
        yield Query(about, embedded, results[self._hits], answer, decision, ranked)
