"""Watches LlamaIndex through a span handler of its public instrumentation.

At the start of a synthesis or an extraction, before its first call, the handler gets the object and
all its texts. Then it sends the graph ahead. During a call, the spans around it have its template
and arguments. None of LlamaIndex's classes, functions and settings is changed: the list of span
handlers gets one more. A method without a span is not seen, such as the build of an index.
"""

from __future__ import annotations

import inspect
import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock, RLock
from typing import Any
from weakref import WeakKeyDictionary, finalize

from llama_index.core import __version__
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.instrumentation.span import active_span_id
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.prompts.base import BasePromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import QueryBundle
from llama_index.llms.weftline.ahead.composition import Composed
from llama_index.llms.weftline.ahead.ingestion import Ingesting, ingestion_of
from llama_index.llms.weftline.ahead.request_claims import request_key
from llama_index.llms.weftline.ahead.submitted_graph import SubmittedGraph
from llama_index.llms.weftline.model.openai_messages import said_in
from llama_index.llms.weftline.plan.call_plan import (
    CallPlan,
    Unplannable,
    can_plan,
    plan_on_hits,
    plan_synthesis,
)
from llama_index.llms.weftline.plan.extraction import can_extract, llm_of, plan_extraction
from llama_index.llms.weftline.plan.fusion import Fused, is_fusion
from llama_index.llms.weftline.plan.node_search import (
    LoneSearch,
    NodeSearch,
    finding_of,
    finding_of_engine,
)
from llama_index.llms.weftline.plan.options import is_sent_ahead, knows_nodes
from llama_index.llms.weftline.plan.rewrite import (
    Rewritten,
    is_transform,
    looked_ahead,
    transformed,
)
from llama_index.llms.weftline.plan.router_graphs import can_route, decider_of, graph_of
from llama_index.llms.weftline.trace.run_provenance import (
    MIN_SEARCHED,
    SessionRun,
    begin_run,
    by_template,
)
from llama_index_instrumentation import get_dispatcher

from weftline.kit import Pieces, Request, Result, RunSessions, Server
from weftline.kit.pieces import by_search
from weftline.kit.retrieval_requests import AnswerSteps
from weftline.kit.run_sessions import MAX_NAME, Nested, said_of

log = logging.getLogger(__name__)

# The most spans that are kept. LlamaIndex never ends some, such as those of closed event loops.
MAX_SPANS = 20_000
MAX_ANCESTORS = 12
MAX_VALUES = 64

QUERYING = ("_query", "_aquery")
EMBEDDING = ("__call__", "acall")
RETRIEVING = (*QUERYING, "_retrieve", "_aretrieve")
FUSING = ("_retrieve", "aretrieve")  # its method `_aretrieve` has no span
REWRITING = ("_run", "predict")

Graph = SubmittedGraph | LoneSearch | Composed | Ingesting


@dataclass(eq=False, slots=True)
class Span(Nested):
    """A method that is running: its object, its arguments, and the span that contains it."""

    instance: Any
    arguments: Mapping[str, Any]
    parent: Span | None
    graph: Graph | None = None
    runs: RunSessions[SessionRun] = field(default_factory=RunSessions)


class Spans:
    """The open spans of LlamaIndex, by their ids."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, Span] = OrderedDict()
        # Reentrant: a garbage collection while it is held may end a run, which comes here, too.
        self._lock = RLock()

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, id: str, instance: Any, arguments: Mapping[str, Any], parent: Any) -> None:
        """Note that a method begins."""
        span = Span(instance, arguments, self._innermost(parent))
        with self._lock:
            self._open[id] = span
            while len(self._open) > MAX_SPANS:
                self._open.popitem(last=False)
        method = id.partition("-")[0].rpartition(".")[2]
        # Of these methods, the one around them makes the requests that follow.
        owner = span.parent if method in (*EMBEDDING, *REWRITING) else span
        if owner is not None:
            self._send_ahead(span, method, owner)

    def _innermost(self, active: str | None) -> Span | None:
        """The span with the id `active`."""
        return self._open.get(active or "")

    def leave(self, id: str, result: Any) -> None:
        """Note that a method ends. Its `result` may be a stream that nobody has read yet."""
        with self._lock:
            span = self._open.pop(id, None)
        if span is not None:
            _end(span, result)

    def _send_ahead(self, span: Span, method: str, owner: Span) -> None:
        """Submit what is certain to be asked next, as a graph of `owner`."""
        name = type(span.instance).__name__
        try:
            graph = self._graph_of(span, method)
            if graph is None:
                return
            graph.start()
        except Unplannable as reason:
            log.debug("%s is not sent ahead: %s", name, reason)
            return
        except Exception as error:
            if isinstance(error, AttributeError) and _is_of_llama_index(error.obj):
                _warn_of_missing(error)
                return
            # LlamaIndex runs unchanged, so it meets the error of a server or a wrong argument
            # itself. A fault of this package is only in the log.
            if (llm := _llm_of(span.instance)) is None:
                log.warning("%s is not sent ahead", name, exc_info=True)
            else:
                llm.asking.warn(error)
            return
        for asking in graph.askings:
            asking.add(graph)
        before, owner.graph = owner.graph, graph
        if before is not None:
            _leave(before)

    def _graph_of(self, span: Span, method: str) -> Graph | None:
        """The graph to submit at the start of a method, or None. Raises Unplannable."""
        if method in QUERYING and can_route(span.instance):
            return self._routed(span)
        if method in FUSING and is_fusion(span.instance):
            given = dict(span.arguments)
            query = given.get("query_bundle", given.get("str_or_query_bundle"))
            return self._fused(span, span.instance, query, None)
        if method in RETRIEVING:
            return self._looked_up(span, method)
        if method in EMBEDDING:
            return self._ingested(span)
        if method in REWRITING:
            return self._rewritten(span)
        llm = _llm_of(span.instance)
        if llm is None or not is_sent_ahead(llm, llm.asking.server):
            return None
        plan = _plan(span, method)
        if plan is None or len(plan.drafts) < 2:
            return None  # a single call gains nothing
        if any(_has_first(one, plan) for one in span.ancestry()):
            return None  # the graph of an engine has them
        return SubmittedGraph(plan, self.run_of(span, llm), parts=_streams(span.instance))

    def _looked_up(self, span: Span, method: str) -> Graph | None:
        """The embedding and the search of a query, and what is done with the nodes."""
        engine = span.instance if method in QUERYING else None
        if engine is not None and type(engine) is not RetrieverQueryEngine:
            return None
        query = span.arguments.get("query_bundle")
        if engine is not None and is_fusion(engine.retriever):
            return self._fused(span, engine.retriever, query, engine)
        retriever = span.instance if engine is None else engine.retriever
        sent = (None if one.graph is None else one.graph.found for one in span.ancestry())
        if any(found is not None and found.covers(retriever, query) for found in sent):
            return None
        if engine is None:
            finding = finding_of(retriever, query)
        else:
            finding = finding_of_engine(engine, query)
        if finding is None:
            return None
        if engine is not None and (graph := self._answered(span, finding)) is not None:
            return graph
        return LoneSearch(finding, self._run_at(span, finding.server))

    def _answered(self, span: Span, finding: NodeSearch) -> SubmittedGraph | None:
        """The graph of an engine's query, if its calls are certain."""
        synthesizer = span.instance._response_synthesizer
        llm = _llm_of(synthesizer) if can_plan(synthesizer) else None
        if llm is None or llm.asking.server.place != finding.server.place:
            return None
        run = self.run_of(span, llm)
        if not knows_nodes(span.instance, finding) or not is_sent_ahead(llm, llm.asking.server):
            return None
        try:
            plan = plan_on_hits(synthesizer, finding.query, finding.k, finding.node_tokens)
            return SubmittedGraph(plan, run, finding, parts=_streams(synthesizer))
        except Unplannable as reason:
            log.debug("the answer is not sent ahead: %s", reason)
            return None

    def _routed(self, span: Span) -> Composed | None:
        """The query of an engine over other engines."""
        query, llm = span.arguments.get("query_bundle"), _llm_of(span.instance)
        if not isinstance(query, QueryBundle) or llm is None:
            return None
        server = llm.asking.server
        if not is_sent_ahead(llm, server):
            return None
        return graph_of(span.instance, query, server, self.run_of(span, llm))

    def _fused(self, span: Span, retriever: Any, query: Any, engine: Any) -> Composed | None:
        """The queries of a retriever that asks others, their searches, and what follows."""
        llm = retriever._llm
        if isinstance(query, str):
            query = QueryBundle(query)
        if not isinstance(query, QueryBundle) or not hasattr(llm, "asking"):
            return None
        if any(_asks(one, retriever, query) for one in span.ancestry()):
            return None  # the graph of its engine has them
        server = llm.asking.server
        if not is_sent_ahead(llm, server):
            return None
        return Fused(retriever, query, server, self.run_of(span, llm), engine)

    def _rewritten(self, span: Span) -> Composed | None:
        """The call that rewrites a query, and the query of the engine behind it."""
        engine = None if span.parent is None else span.parent.instance
        llm = _llm_of(span.instance) if is_transform(span.instance) else span.instance
        if not hasattr(llm, "asking") or not is_sent_ahead(llm, llm.asking.server):
            return None
        plan = transformed if is_transform(span.instance) else looked_ahead
        rewriting = plan(span.instance, span.arguments, engine)
        if rewriting is None:
            return None
        return Rewritten(rewriting, llm.asking.server, self.run_of(span, llm))

    def _ingested(self, span: Span) -> Ingesting | None:
        """The embedding of a pipeline's nodes, and adding them to its store after this span."""
        around = span.parent
        if around is None or around.graph is not None:
            return None
        ingestion = ingestion_of(around.instance, span.instance, span.arguments.get("nodes"))
        if ingestion is None:
            return None
        return Ingesting(ingestion, self._run_at(span, ingestion.server))

    def _run_at(self, span: Span, server: Server) -> SessionRun | None:
        """The run's session at a server, if it has one."""
        *_, root = span.ancestry()
        return _runs(root).by_server.get(server.place)

    def stored(
        self, server: Server, store: str, items: list[Any], vectors: list[list[float]]
    ) -> list[Result] | None:
        """The results of storing exactly these items, if the running code has sent them ahead."""
        span = self._innermost(active_span_id.get())
        for one in () if span is None else span.ancestry():
            if isinstance(one.graph, Ingesting):
                return one.graph.claim_stored(server, store, items, vectors)
        return None

    def found(self, server: Server, asked: AnswerSteps) -> Result | None:
        """The result of a retriever's request, if the running code has sent it ahead."""
        span = self._innermost(active_span_id.get())
        for one in () if span is None else span.ancestry():
            found = None if one.graph is None else one.graph.found
            if found is not None:
                return found.claim(server, asked)
        return None

    def run_now(self, llm: Any) -> SessionRun | None:
        """The run of the running code; None outside of all spans."""
        span = self._innermost(active_span_id.get())
        return None if span is None else self.run_of(span, llm)

    def run_of(self, span: Span, llm: Any) -> SessionRun:
        """The run's session at the LLM's server. One query, pipeline run or chat is one run."""
        *_, root = span.ancestry()
        server = llm.asking.server
        return _runs(root).find(server.place, partial(begin_run, server, llm.on_graph))

    def account(self, llm: Any, messages: Sequence[Mapping[str, Any]]) -> Request | None:
        """The provenance of the prompt that the running code has made: its pieces and its run."""
        span = self._innermost(active_span_id.get())
        if span is None:
            return None
        around = list(span.ancestry())[:MAX_ANCESTORS]
        pieces = _pieces(llm, around, [message["content"] for message in messages])
        run = self.run_of(span, llm)
        traced = [
            run.trace_calls(run.trace(found), (call["id"] for call in message["tool_calls"]))
            if message.get("tool_calls")
            else run.trace(found)
            for found, message in zip(pieces, messages, strict=True)
        ]
        return Request(said_of(run, _name(llm, around), traced), run)


# The sessions of each chat engine. All its turns are one session, which ends with the engine.
_CHATS: WeakKeyDictionary[BaseChatEngine, RunSessions[SessionRun]] = WeakKeyDictionary()
_CHATS_LOCK = Lock()


def _chat_of(span: Span) -> BaseChatEngine | None:
    """The chat engine whose turn `span` is; None for other spans and for inner spans."""
    chat = span.instance
    return chat if span.parent is None and isinstance(chat, BaseChatEngine) else None


def _runs(root: Span) -> RunSessions[SessionRun]:
    """The sessions of the run `root`, or of the chat engine if `root` is a turn of a chat."""
    chat = _chat_of(root)
    if chat is None:
        return root.runs
    with _CHATS_LOCK:
        runs = _CHATS.get(chat)
        if runs is None:
            runs = _CHATS[chat] = RunSessions()
            finalize(chat, runs.finish).atexit = False  # the server ends what a process leaves
        return runs


def _end(span: Span, result: Any = None) -> None:
    """Note that the method of a span has ended. A stream that it returned may still be read."""
    if (graph := span.graph) is not None:
        streamed = getattr(result, "response_gen", None) or result
        if inspect.isgenerator(streamed) or inspect.isasyncgen(streamed):
            finalize(streamed, _leave, graph)
        else:
            _leave(graph)
    if _chat_of(span) is None:
        span.runs.finish()


def _leave(graph: Graph) -> None:
    """Note that no more requests will come for a graph."""
    for asking in graph.askings:
        asking.drop(graph)
    graph.leave()


_MISSING: set[str] = set()


def _is_of_llama_index(thing: object) -> bool:
    """Whether an object that lacks a member is LlamaIndex's, and not a value of the user."""
    owner = thing if isinstance(thing, type) else type(thing)
    return owner.__module__.partition(".")[0] == "llama_index"


def _warn_of_missing(error: AttributeError) -> None:
    """Log that calls are sent one by one, because an object lacks a member. Each is named once."""
    text = f"LlamaIndex {__version__} differs from those that the adapter knows: {error}"
    if text not in _MISSING:
        _MISSING.add(text)
        log.warning("%s. So the calls that need it go one by one.", text, exc_info=error)


def _streams(synthesizer: Any) -> bool:
    return bool(getattr(synthesizer, "_streaming", False))


def _plan(span: Span, method: str) -> CallPlan | None:
    given = dict(span.arguments)
    if method in ("get_response", "aget_response") and can_plan(span.instance):
        if any(_covers(s, span.instance) for s in span.ancestry()):
            return None  # the graph of an outer method has these calls
        query, chunks = given.pop("query_str"), given.pop("text_chunks")
        given.pop("separator", None)
        others = {**given, **given.pop("response_kwargs", {})}
        if others.get("prev_response") is None:
            others.pop("prev_response", None)
        others.pop("response_kwargs", None)
        return plan_synthesis(span.instance, query, list(chunks), others)
    if method == "aextract" and can_extract(span.instance):
        return plan_extraction(span.instance, list(given["nodes"]))
    return None


def _asks(span: Span, retriever: Any, query: QueryBundle) -> bool:
    """Whether the queries of `retriever` were sent ahead at the start of `span`."""
    return isinstance(span.graph, Fused) and span.graph.asks(retriever, query)


def _has_first(span: Span, plan: CallPlan) -> bool:
    """Whether the first call of `plan` was sent ahead at the start of `span`."""
    if not isinstance(span.graph, SubmittedGraph | Composed):
        return False
    first = plan.drafts[0]
    return span.graph.has(request_key(first.messages, {**plan.llm.parameters(), **first.fields}))


def _covers(span: Span, synthesizer: Any) -> bool:
    """Whether the graph sent at the start of `span` will answer the calls of `synthesizer`."""
    if span.graph is None:
        return False
    same = span.instance is synthesizer
    return same and (span.graph.complete or span.graph.has_left)


def _llm_of(instance: Any) -> Any:
    """The Weftline LLM of the first call of an object that is sent ahead; None for any other."""
    if can_plan(instance) or is_transform(instance):
        llm = instance._llm
    elif can_route(instance):
        llm = decider_of(instance)
    elif can_extract(instance):
        llm = llm_of(instance)
    else:
        return None
    return llm if hasattr(llm, "asking") else None


def _pieces(llm: Any, around: Sequence[Span], texts: Sequence[str]) -> list[Pieces]:
    for span in around:
        prompt, arguments = span.arguments.get("prompt"), span.arguments.get("prompt_args")
        if isinstance(prompt, BasePromptTemplate) and arguments is not None:
            found = by_template(llm, prompt, arguments, texts)
            if found is not None:
                return found
    values = [
        (name, value)
        for span in around
        for name, value in _strings_in("input", dict(span.arguments))
        if value not in texts  # the prompt itself, on its way down
    ]
    return [by_search(text, values[:MAX_VALUES], MIN_SEARCHED) for text in texts]


def _strings_in(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, QueryBundle):
        yield "query_str", value.query_str
    elif isinstance(value, ChatMessage):
        yield "message", said_in(value)
    elif depth < 3 and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings_in(str(key), item, depth + 1)
    elif depth < 3 and isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings_in(name, item, depth + 1)


def _name(llm: Any, around: Sequence[Span]) -> str:
    """The class of the nearest object of the application around the call."""
    for span in around:
        if span.instance is not None and span.instance is not llm:
            return type(span.instance).__name__[:MAX_NAME]
    return "chat"


class _Handler(BaseSpanHandler[Any]):
    """The handler that LlamaIndex calls.

    LlamaIndex ignores a handler's exceptions, so its methods must not raise.
    """

    @classmethod
    def class_name(cls) -> str:
        return "WeftlineSpanHandler"

    def new_span(
        self,
        id_: str,
        bound_args: inspect.BoundArguments,
        instance: Any = None,
        parent_span_id: str | None = None,
        tags: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        SPANS.enter(id_, instance, bound_args.arguments, parent_span_id)

    def prepare_to_exit_span(
        self,
        id_: str,
        bound_args: inspect.BoundArguments,
        instance: Any = None,
        result: Any = None,
        **kwargs: Any,
    ) -> None:
        SPANS.leave(id_, result)

    def prepare_to_drop_span(
        self,
        id_: str,
        bound_args: inspect.BoundArguments,
        instance: Any = None,
        err: BaseException | None = None,
        **kwargs: Any,
    ) -> None:
        SPANS.leave(id_, None)


SPANS = Spans()
_HANDLER = _Handler()
_LISTENING = Lock()


def listen() -> None:
    """Add the handler to LlamaIndex's instrumentation, also again if it was removed."""
    root = get_dispatcher()
    with _LISTENING:
        if all(handler is not _HANDLER for handler in root.span_handlers):
            root.add_span_handler(_HANDLER)
