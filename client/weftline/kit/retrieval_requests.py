"""The requests of the adapters' embedders, vector stores and rerankers. Each is one submit.

Each request has a session of its own, which the server closes after its response.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from weftline.contract.errors import InvalidRequest
from weftline.contract.steps import Delete, Embed, Fetch, Ingest, Rerank, Search, Source, Step
from weftline.contract.vectors import Vectors
from weftline.kit.clients import CLIENTS
from weftline.kit.faults import raising_ours
from weftline.kit.server import Server
from weftline.sdk.background import BACKGROUND, awaited

T = TypeVar("T")

EMBEDDED, ANSWER = "embedded", "answer"  # the variables of a submit

# One submit has at most this many characters or numbers of vectors, because the server refuses
# bodies of more than 8 MiB. A number is 6 characters of base64. A character of text is up to 4
# bytes.
MAX_CHARS = 1_000_000
MAX_NUMBERS = 1_000_000

Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerSteps:
    """The steps of one submit. The last one writes the variable ANSWER."""

    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Embedder:
    """An embedder of the server, and what becomes of texts that are too long.

    `name` None is the first one. `cut` is the `truncate_prompt_tokens` of its steps.
    """

    name: str | None = None
    cut: int | None = None

    def step(self, source: Source, out: str, name: str = "") -> Embed:
        return Embed(
            in_=source, out=out, name=name, engine=self.name, truncate_prompt_tokens=self.cut
        )


def embed(texts: Sequence[str], embedder: Embedder) -> AnswerSteps:
    """Embeds texts. `vectors_of` reads the vectors from the value."""
    return AnswerSteps((embedder.step(Source(value=list(texts)), ANSWER),))


def add(items: Sequence[Item], store: str, embedder: Embedder) -> AnswerSteps:
    """Embeds items and adds them to a store."""
    source = Source(value=[dict(item) for item in items])
    ingest = Ingest(in_=Source(var=EMBEDDED), out=ANSWER, store=store)
    return AnswerSteps((embedder.step(source, EMBEDDED), ingest))


def add_embedded(
    items: Sequence[Item], vectors: Sequence[Sequence[float]], store: str
) -> AnswerSteps:
    """Adds items with the vectors that the client has."""
    value = embedded([dict(item) for item in items], vectors)
    return AnswerSteps((Ingest(in_=Source(value=value), out=ANSWER, store=store),))


def find(
    query: str, store: str, embedder: Embedder, k: int, filter: Mapping[str, Any] | None
) -> AnswerSteps:
    """Embeds a query and finds the nearest documents."""
    search = Search(
        in_=Source(var=EMBEDDED), out=ANSWER, store=store, k=k, filter=dict(filter or {})
    )
    return AnswerSteps((embedder.step(Source(value=query), EMBEDDED), search))


def find_near(
    vector: Sequence[float], store: str, k: int, filter: Mapping[str, Any] | None
) -> AnswerSteps:
    """Finds the documents that are nearest to a vector that the client has."""
    value = {**embedded([{"text": ""}], [vector]), "single": True}
    source = Source(value=value)
    return AnswerSteps(
        (Search(in_=source, out=ANSWER, store=store, k=k, filter=dict(filter or {})),)
    )


def delete(ids: Sequence[str], store: str, filter: Mapping[str, Any] | None = None) -> AnswerSteps:
    """Deletes documents by their ids, and those whose metadata matches a filter."""
    source = Source(value=list(ids))
    return AnswerSteps((Delete(in_=source, out=ANSWER, store=store, filter=dict(filter or {})),))


def fetch(ids: Sequence[str], store: str, filter: Mapping[str, Any] | None = None) -> AnswerSteps:
    """Documents by their ids, and those whose metadata matches a filter."""
    source = Source(value=list(ids))
    return AnswerSteps((Fetch(in_=source, out=ANSWER, store=store, filter=dict(filter or {})),))


def rerank(query: str, texts: Sequence[str], k: int | None, engine: str | None) -> AnswerSteps:
    """The best `k` texts: items with their `index` in `texts` and a `score`, the best first."""
    items = [{"text": text, "index": at} for at, text in enumerate(texts)]
    step = Rerank(
        in_=Source(value=items), query=Source(value=query), out=ANSWER, k=k, engine=engine
    )
    return AnswerSteps((step,))


def embedded(items: Sequence[Item], vectors: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Items and vectors as the value of an embed step. Raises InvalidRequest for unequal widths."""
    widths = {len(vector) for vector in vectors}
    if len(widths) != 1 or len(items) != len(vectors):
        raise InvalidRequest(
            f"{len(items)} texts came with {len(vectors)} vectors of widths {sorted(widths)}: "
            "all vectors must have one width",
            param="vectors",
        )
    return {"items": list(items), "single": False, **Vectors.of(vectors).to_json()}


def vectors_of(value: Mapping[str, Any]) -> list[list[float]]:
    """The vectors of an embed step's value."""
    return [row.tolist() for row in Vectors.from_json(value).rows()]


def portions(texts: Sequence[str], width: int = 0) -> list[slice]:
    """Slices of `texts` that are small enough for one submit each.

    `width` is how many numbers each text's vector has, or 0 where the client sends no vectors.
    """
    found, start, chars = [], 0, 0
    most_items = MAX_NUMBERS // width if width else len(texts)
    for at, text in enumerate(texts):
        if at > start and (chars + len(text) > MAX_CHARS or at - start >= max(1, most_items)):
            found.append(slice(start, at))
            start, chars = at, 0
        chars += len(text)
    return [*found, slice(start, len(texts))] if texts else []


@dataclass(frozen=True, slots=True)
class Retrieval:
    """A server's embedders, rerankers and stores, from any thread and any event loop."""

    server: Server = field(repr=False)

    def ask(self, asked: AnswerSteps) -> Any:
        """The answer. Raises the error of the step that failed first."""
        return BACKGROUND.run(self._ask(asked))

    async def aask(self, asked: AnswerSteps) -> Any:
        """Like `ask`, for a coroutine."""
        return await _result(self._ask(asked))

    async def _ask(self, asked: AnswerSteps) -> Any:
        with raising_ours():
            client = await CLIENTS.of(self.server)
            answer = await client.run((), (ANSWER,), steps=asked.steps)
        return answer.values[ANSWER]


async def _result(work: Coroutine[Any, Any, T]) -> T:
    """Wait for `work` on the background loop. Cancelling this wait cancels the work."""
    future = BACKGROUND.start(work)
    try:
        return await awaited(future)
    except BaseException:
        future.cancel()
        raise
