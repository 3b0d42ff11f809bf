"""The requests that an IngestionPipeline is about to make: the embedding of its nodes, and adding
them to a store.

The two requests are sent ahead as steps of one graph, where the embedding model and the store are
ours and at one server. Nothing is stored before all nodes are embedded, as in the plain program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.llms.weftline.plan.node_search import is_served
from llama_index.llms.weftline.trace.run_provenance import SessionRun

from weftline.contract.steps import Branch, Case, Embed, Ingest, Source, Step
from weftline.kit import Result, RunFeed, Server
from weftline.kit.results import rows_of
from weftline.kit.retrieval_requests import MAX_CHARS, AnswerSteps, portions, vectors_of

MAX_NODES = 2048  # of one submit, whose response has all their vectors
MAX_PORTIONS = 8  # a session's budget bounds the values that it holds


@dataclass(frozen=True, slots=True)
class Batch:
    """The nodes of one request of the embedding model, and the items that the store gets."""

    asked: AnswerSteps
    items: list[dict[str, Any]]
    chars: int


@dataclass(frozen=True, slots=True)
class Ingestion:
    """What will be asked for nodes: one submit for each portion of batches."""

    server: Server
    store: str
    portions: list[list[Batch]]

    @property
    def items(self) -> list[dict[str, Any]]:
        """What the store gets."""
        return [item for portion in self.portions for batch in portion for item in batch.items]


def ingestion_of(pipeline: Any, model: object, nodes: Any) -> Ingestion | None:
    """What `pipeline` will ask when `model` gets these nodes; None where that is not certain."""
    if type(pipeline) is not IngestionPipeline or not isinstance(model, BaseEmbedding):
        return None
    steps = pipeline.transformations
    # A later transformation may change the nodes.
    ends = steps[-1] is model and sum(one is model for one in steps) == 1
    return _ingestion(model, pipeline.vector_store, nodes) if ends else None


def _ingestion(model: object, vector_store: object, nodes: Any) -> Ingestion | None:
    embeds: Any = model
    store: Any = vector_store
    if not (is_served(embeds) and is_served(store)) or not isinstance(nodes, Sequence) or not nodes:
        return None
    at: Server = embeds.server.server
    if (
        at.place != store.server.server.place
        or embeds.embeddings_cache
        or getattr(embeds, "rate_limiter", None) is not None
    ):
        return None
    found: list[list[Batch]] = []
    chars = count = MAX_CHARS
    for batch in _batches(embeds, store, nodes):
        chars, count = chars + batch.chars, count + len(batch.items)
        if chars > MAX_CHARS or count > MAX_NODES:
            found.append([])
            chars, count = batch.chars, len(batch.items)
        found[-1].append(batch)
    return Ingestion(at, store.store, found) if len(found) <= MAX_PORTIONS else None


def _embedded_text(node: BaseNode) -> str:
    return node.get_content(metadata_mode=MetadataMode.EMBED)


def _batches(embeds: Any, store: Any, nodes: Sequence[BaseNode]) -> Iterator[Batch]:
    """The batches in which LlamaIndex gives the texts to the embedding model."""
    size = embeds.embed_batch_size
    for start in range(0, len(nodes), size):
        some = nodes[start : start + size]
        texts = list(map(_embedded_text, some))
        for part in portions(texts):
            items = store.items_of(some[part])
            chars = sum(map(len, texts[part])) + sum(map(store.chars_of, items))
            yield Batch(embeds.asked(texts[part]), items, chars)


class Ingesting:
    """An ingestion that was sent ahead. It joins the session of `run`, or has one of its own."""

    complete = has_left = False
    askings: Sequence[Any] = ()

    def __init__(self, ingestion: Ingestion, run: SessionRun | None) -> None:
        self._ingestion, self._run = ingestion, run
        self._feed = RunFeed(ingestion.server, joins=None if run is None else run.alias)
        self._number = 0 if run is None else run.reserve(1)
        self._lock = Lock()
        self._left: list[tuple[AnswerSteps, Result]] = []
        self._stored: list[Result] = []
        self._embedded: list[Result] = []

    @property
    def found(self) -> Ingesting:
        """This object itself, which gives results of the embedding model."""
        return self

    def start(self) -> None:
        """Submit the portions. Each has the embedding of its nodes, and stores them."""
        parts = self._ingestion.portions
        last = len(parts) - 1
        numbers = range(len(parts))
        embedded = [f"embedded_{self._number}_{at}" for at in numbers]
        stored = [f"stored_{self._number}_{at}" for at in numbers]
        whole = embedded if last == 0 else [f"whole_{self._number}_{at}" for at in numbers]
        for at, portion in enumerate(parts):
            items = Source(value=[item for batch in portion for item in batch.items])
            read = Source(var=whole[at])
            steps = [
                _embed(portion, embedded[at]),
                Ingest(in_=read, items=items, out=stored[at], store=self._ingestion.store),
                *(self._after_all(embedded, whole) if at == last else ()),
            ]
            # What is stored waits for the last submit, which may arrive before the others.
            ends = at == last
            watch = (embedded[at], *(stored if ends else ()))
            close = ends and self._run is None
            self._feed.send((), watch, steps=steps, close=close, wait=ends)
            self._cut(portion, self._feed.results[embedded[at]])
        self._stored = [self._feed.results[name] for name in stored]
        if self._run is not None:
            self._run.join(self._feed)

    def _cut(self, portion: Sequence[Batch], embedded: Result) -> None:
        """Note the results of the batches of a portion."""
        self._embedded.append(embedded)
        start = 0
        for batch in portion:
            end = start + len(batch.items)
            self._left.append((batch.asked, rows_of(embedded, start, end)))
            start = end

    def _after_all(self, embedded: Sequence[str], whole: Sequence[str]) -> list[Step]:
        """Copies of all embedded texts that are there when the last of them is.

        A branch has the value of its side when the value that it looks at is there, too.
        """
        if embedded == whole:
            return []
        steps: list[Step] = []
        known = embedded[0]
        for at, name in enumerate(embedded[1:], 1):
            steps.append(_when(known, name, f"until_{self._number}_{at}"))
            known = f"until_{self._number}_{at}"
        return [*steps, *(_when(known, *pair) for pair in zip(embedded, whole, strict=True))]

    def covers(self, retriever: Any, query: Any) -> bool:
        """Whether what a retriever asks was sent ahead: it was not."""
        return False

    def claim(self, server: Server, asked: AnswerSteps) -> Result | None:
        """The vectors of a batch, if it is not claimed yet."""
        if server.place != self._ingestion.server.place:
            return None
        with self._lock:
            for at, (known, result) in enumerate(self._left):
                if known == asked:
                    del self._left[at]
                    return result
        return None

    def claim_stored(
        self,
        server: Server,
        store: str,
        items: list[dict[str, Any]],
        vectors: list[list[float]],
    ) -> list[Result] | None:
        """The results of storing exactly these items with these vectors."""
        ours = self._ingestion
        if (server.place, store) != (ours.server.place, ours.store) or items != ours.items:
            return None
        made: list[list[float]] = []
        for result in self._embedded:
            if not result.value.done() or result.value.exception() is not None:
                return None
            made += vectors_of(result.value.result().value)
        with self._lock:
            stored, self._stored = self._stored, []
        return stored if stored and made == vectors else None

    def leave(self) -> None:
        """Note that the pipeline has ended, or has gone on to its next nodes."""
        self._feed.close()


def _embed(portion: Sequence[Batch], out: str) -> Embed:
    """The embedding of all texts of a portion."""
    steps = [step for batch in portion for step in batch.asked.steps if isinstance(step, Embed)]
    texts = [text for step in steps for text in step.in_.value]
    return replace(steps[0], in_=Source(value=texts), out=out)


def _when(known: str, value: str, out: str) -> Branch:
    """The value of the variable `value`, as soon as the variable `known` has one."""
    case = Case(when={"op": "truthy"}, take=value)
    return Branch(on=Source(var=known), cases=(case,), default=value, out=out)
