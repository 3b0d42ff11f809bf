"""Watches LlamaIndex through its public instrumentation.

At the start of a synthesis or an extraction, before its first call, the handler gets the object and
all its texts. Then it sends the graph ahead. During a call, the spans around it have its template
and arguments. The handler changes none of LlamaIndex's objects.
"""

from __future__ import annotations

import inspect
import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary, finalize

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.instrumentation.span import active_span_id
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.prompts.base import BasePromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import QueryBundle
from llama_index.llms.weftline.ahead import Ahead
from llama_index.llms.weftline.building import builder_of, can_build, plan_build
from llama_index.llms.weftline.choosing import is_sent_ahead
from llama_index.llms.weftline.composed import Composed
from llama_index.llms.weftline.extracting import can_extract, llm_of, plan_extraction
from llama_index.llms.weftline.ingesting import Ingesting, ingestion_of
from llama_index.llms.weftline.plan import (
    Plan,
    Unplannable,
    can_plan,
    plan_on_hits,
    plan_synthesis,
)
from llama_index.llms.weftline.provenance import MIN_SEARCHED, Run, begin_run, by_template
from llama_index.llms.weftline.retrieving import Finding, Lookup, finding_of
from llama_index.llms.weftline.routing import can_route, decider_of, graph_of, streams
from llama_index.llms.weftline.scopes import ENCLOSING, enclose
from llama_index_instrumentation import get_dispatcher

from weftline.adapters import Pieces, Request, Result, RunSessions, Server
from weftline.adapters.pieces import by_search
from weftline.adapters.retrieval import Asked
from weftline.adapters.sessions import MAX_NAME, Nested, said_of

log = logging.getLogger(__name__)

# The most spans that are kept. LlamaIndex never ends some, such as those of closed event loops.
MAX_SPANS = 20_000
MAX_ANCESTORS = 12
MAX_VALUES = 64

QUERYING = ("_query", "_aquery")
EMBEDDING = ("__call__", "acall")
RETRIEVING = (*QUERYING, "_retrieve", "_aretrieve")


@dataclass(eq=False, slots=True)
class Span(Nested):
    """A method that is running: its object, its arguments, and the span that contains it."""

    instance: Any
    arguments: Mapping[str, Any]
    parent: Span | None
    graph: Ahead | Lookup | Composed | Ingesting | None = None
    asking: Any = None  # of the graph's calls
    runs: RunSessions[Run] = field(default_factory=RunSessions)


class Spans:
    """The open spans, by their ids."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, Span] = OrderedDict()
        self._lock = Lock()

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
        if method in QUERYING and can_route(instance):
            self._route_ahead(span)
        elif method in RETRIEVING:
            self._find_ahead(span, method)
        elif method in EMBEDDING:
            self._ingest_ahead(span)
        else:
            self._send_ahead(span, method)

    def _innermost(self, active: str | None) -> Span | None:
        """The span with the id `active`, or the scope of ours that is inside it."""
        span, scope = self._open.get(active or ""), self._open.get(ENCLOSING.get() or "")
        if scope is not None and (span is None or span in scope.ancestry()):
            return scope
        return span

    def leave(self, id: str, result: Any) -> None:
        """Note that a method ends. Its `result` may be a stream that nobody has read yet."""
        with self._lock:
            span = self._open.pop(id, None)
        if span is None:
            return
        if (graph := span.graph) is not None:
            leave = graph.leave if span.asking is None else partial(span.asking.leave, graph)
            streamed = getattr(result, "response_gen", None) or result
            if inspect.isgenerator(streamed) or inspect.isasyncgen(streamed):
                finalize(streamed, leave)
            else:
                leave()
        if _chat_of(span) is None:
            span.runs.finish()

    def _send_ahead(self, span: Span, method: str) -> None:
        llm = _llm_of(span.instance)
        if llm is None or not llm.ahead or llm.rate_limiter is not None:
            return
        try:
            plan = _plan(span, method)
            if plan is None or len(plan.drafts) < 2:
                return  # a single call gains nothing
            run = self.run_of(span, llm)
            graph = Ahead(plan, llm.parameters(), llm.asking.server, run)
        except Unplannable as reason:
            log.debug("%s is not sent ahead: %s", type(span.instance).__name__, reason)
            return
        except Exception as error:  # LlamaIndex will meet the same error, and report it
            llm.asking.warn(error)
            return
        self._start(span, graph, llm, span.instance)

    def _start(self, span: Span, graph: Ahead, llm: Any, synthesizer: Any) -> None:
        streams = bool(getattr(synthesizer, "_streaming", False))
        llm.asking.send_ahead(graph, with_parts=streams)
        span.graph, span.asking = graph, llm.asking

    def _find_ahead(self, span: Span, method: str) -> None:
        """Send the embedding and the search of a query, and the call on what is found."""
        engine = span.instance if method in QUERYING else None
        if engine is not None and type(engine) is not RetrieverQueryEngine:
            return
        retriever = span.instance if engine is None else engine._retriever
        query = span.arguments.get("query_bundle")
        sent = (None if one.graph is None else one.graph.found for one in span.ancestry())
        if any(found is not None and found.covers(retriever, query) for found in sent):
            return
        try:
            finding = finding_of(retriever, query)
            if finding is None or self._answer_ahead(span, finding):
                return
            *_, root = span.ancestry()
            lookup = Lookup(finding, _runs(root).by_server.get(finding.server.place))
            lookup.start()
            span.graph = lookup
        except Exception as error:  # LlamaIndex will meet the same error, and report it
            log.debug("%s is not sent ahead: %s", type(span.instance).__name__, error)

    def _route_ahead(self, span: Span) -> None:
        """Send the query of an engine over other engines."""
        query, llm = span.arguments.get("query_bundle"), decider_of(span.instance)
        if not isinstance(query, QueryBundle) or not hasattr(llm, "asking"):
            return
        server = llm.asking.server
        if not is_sent_ahead(llm, server):
            return
        try:
            graph = graph_of(span.instance, query, server, self.run_of(span, llm))
            first, rest = graph.prepare()
        except Unplannable as reason:
            log.debug("%s is not sent ahead: %s", type(span.instance).__name__, reason)
            return
        except Exception as error:  # LlamaIndex will meet the same error, and report it
            llm.asking.warn(error)
            return
        graph.start(first, rest, with_parts=streams(span.instance))
        span.graph = graph

    def _answer_ahead(self, span: Span, finding: Finding) -> bool:
        """Whether `span` is an engine's query whose only call was sent ahead with `finding`."""
        synthesizer = getattr(span.instance, "_response_synthesizer", None)
        llm = _llm_of(synthesizer) if can_plan(synthesizer) else None
        if llm is None or llm.asking.server.place != finding.server.place:
            return False
        run = self.run_of(span, llm)
        if span.instance._node_postprocessors or not llm.ahead or llm.rate_limiter is not None:
            return False
        try:
            plan = plan_on_hits(synthesizer, finding.query, finding.k, finding.node_tokens)
            graph = Ahead(plan, llm.parameters(), llm.asking.server, run, finding=finding)
        except Unplannable as reason:
            log.debug("the answer is not sent ahead: %s", reason)
            return False
        self._start(span, graph, llm, synthesizer)
        return True

    def _ingest_ahead(self, span: Span) -> None:
        """Send the embedding of a pipeline's nodes together with adding them to its store."""
        around = span.parent
        if around is None or around.graph is not None:
            return
        try:
            ingestion = ingestion_of(around.instance, span.instance, span.arguments.get("nodes"))
            if ingestion is None:
                return
            *_, root = span.ancestry()
            graph = Ingesting(ingestion, _runs(root).by_server.get(ingestion.server.place))
            graph.start()
            around.graph = graph  # the pipeline stores the nodes after this span
        except Exception as error:  # LlamaIndex will meet the same error, and report it
            log.debug("the nodes are not sent ahead: %s", error)

    def stored(
        self, server: Server, store: str, items: list[Any], vectors: list[list[float]]
    ) -> list[Result] | None:
        """The results of storing exactly these items, if the running code has sent them ahead."""
        span = self._innermost(active_span_id.get())
        for one in () if span is None else span.ancestry():
            if isinstance(one.graph, Ingesting):
                return one.graph.claim_stored(server, store, items, vectors)
        return None

    def found(self, server: Server, asked: Asked) -> Result | None:
        """The result of a retriever's request, if the running code has sent it ahead."""
        span = self._innermost(active_span_id.get())
        for one in () if span is None else span.ancestry():
            found = None if one.graph is None else one.graph.found
            if found is not None:
                return found.claim(server, asked)
        return None

    def run_now(self, llm: Any) -> Run | None:
        """The run of the running code; None outside of all spans."""
        span = self._innermost(active_span_id.get())
        return None if span is None else self.run_of(span, llm)

    def run_of(self, span: Span, llm: Any) -> Run:
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
_CHATS: WeakKeyDictionary[BaseChatEngine, RunSessions[Run]] = WeakKeyDictionary()
_CHATS_LOCK = Lock()


def _chat_of(span: Span) -> BaseChatEngine | None:
    """The chat engine whose turn `span` is; None for other spans and for inner spans."""
    chat = span.instance
    return chat if span.parent is None and isinstance(chat, BaseChatEngine) else None


def _runs(root: Span) -> RunSessions[Run]:
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


def _plan_synthesis(synthesizer: Any, given: dict[str, Any]) -> Plan | None:
    query, chunks = given.pop("query_str"), given.pop("text_chunks")
    given.pop("separator", None)
    others = {**given, **given.pop("response_kwargs", {})}
    if others.get("prev_response") is None:
        others.pop("prev_response", None)
    others.pop("response_kwargs", None)
    return plan_synthesis(synthesizer, query, list(chunks), others)


def _plan(span: Span, method: str) -> Plan | None:
    given = dict(span.arguments)
    if method in ("get_response", "aget_response") and can_plan(span.instance):
        if any(_covers(s, span.instance) for s in span.ancestry()):
            return None  # the graph of an outer method, or of the build around it, has these calls
        return _plan_synthesis(span.instance, given)
    if method == "build_index_from_nodes" and can_build(span.instance):
        return plan_build(span.instance, list(given["nodes"]))
    if method == "aextract" and can_extract(span.instance):
        return plan_extraction(span.instance, list(given["nodes"]))
    return None


def _covers(span: Span, synthesizer: Any) -> bool:
    """Whether the graph sent at the start of `span` will answer the calls of `synthesizer`."""
    if span.graph is None:
        return False
    index = span.instance if can_build(span.instance) else None
    around = getattr(index, "_response_synthesizer", None) is synthesizer
    same = span.instance is synthesizer or around
    return bool(same and (span.graph.complete or span.graph.has_left))


def _llm_of(instance: Any) -> Any:
    """The Weftline LLM that a synthesizer or an extractor calls; None for any other object."""
    if can_plan(instance):
        llm = instance._llm
    elif can_build(instance):
        llm = builder_of(instance)
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
        yield "message", value.content or ""
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


def listen() -> None:
    """Add the handler to LlamaIndex's instrumentation, also again if it was removed."""
    enclose(SPANS, active_span_id.get)
    root = get_dispatcher()
    if _HANDLER not in root.span_handlers:
        root.add_span_handler(_HANDLER)
