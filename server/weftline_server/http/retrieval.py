"""POST /v1/embeddings (OpenAI's), /v1/rerank and /v2/rerank (Cohere's and Jina's): a step each."""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BeforeValidator
from starlette.responses import JSONResponse, Response

from weftline.contract.bodies import LooseBody, StrictBody
from weftline.contract.errors import InvalidRequest
from weftline.contract.protocol import SubmitBody
from weftline.contract.steps import Embed, Rerank, Source, Step
from weftline.contract.vectors import Vectors
from weftline_server.http.direct import Direct
from weftline_server.http.json_bodies import or_disconnect, read, schema
from weftline_server.http.state import asking
from weftline_server.runtime.service import Service
from weftline_server.session.session import ServerSession

router = APIRouter(tags=["retrieval"], route_class=Direct)

MAX_INPUTS = 2048  # of one request, as OpenAI's


def _no_token_ids(given: Any) -> Any:
    """`given`, a list as a tuple. Raises InvalidRequest for token ids, with what to do."""
    if not isinstance(given, list):
        return given
    if any(isinstance(one, (int, list)) for one in given):
        raise InvalidRequest(
            "input holds token ids, which are not those of this embedder's tokenizer: send texts "
            "(OpenAIEmbeddings of LangChain does with check_embedding_ctx_length=False)",
            param="input",
        )
    return tuple(given)


def _end(given: Any) -> Any:
    """`given` in capitals. Raises InvalidRequest for the end that is not cut."""
    if given == "START":
        raise InvalidRequest("texts are cut at their end: write END", param="truncate")
    return given.upper() if isinstance(given, str) else given


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """What becomes of texts that are too long: vLLM's field, and Cohere's. Without both they are
    refused."""

    truncate_prompt_tokens: int | None = None
    truncate: Annotated[Literal["NONE", "END"] | None, BeforeValidator(_end)] = None

    @property
    def cut(self) -> int | None:
        """As in a step."""
        if self.truncate_prompt_tokens is None and self.truncate == "END":
            return -1
        return self.truncate_prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsRequest(Truncation, StrictBody):
    """A text or texts to embed. `dimensions` keeps that many leading numbers of each vector.

    Token ids as input are refused: a tokenizer of OpenAI's is not the embedder's. `user`,
    `metadata` and `input_type` are taken and not used: an embedder adds the words that its own
    directory names, whatever the type.
    """

    input: Annotated[str | tuple[str, ...], BeforeValidator(_no_token_ids)]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None
    input_type: str | None = None
    metadata: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        count = 1 if isinstance(self.input, str) else len(self.input)
        if not 1 <= count <= MAX_INPUTS:
            raise InvalidRequest(f"input holds 1 to {MAX_INPUTS} texts, not {count}", param="input")
        if self.dimensions is not None and not 1 <= self.dimensions <= 65_536:
            raise InvalidRequest("dimensions must be between 1 and 65536", param="dimensions")


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankRequest(Truncation, LooseBody):
    """Documents to order by how well they fit `query`; `top_n` keeps that many."""

    query: str
    documents: tuple[str | dict[str, Any], ...]
    model: str | None = None
    top_n: int | None = None
    return_documents: bool = False

    def __post_init__(self) -> None:
        if not 1 <= len(self.documents) <= MAX_INPUTS:
            raise InvalidRequest(f"documents holds 1 to {MAX_INPUTS} texts", param="documents")
        if self.top_n is not None and self.top_n < 1:
            raise InvalidRequest("top_n must be at least 1", param="top_n")


@router.post(
    "/v1/embeddings",
    openapi_extra=schema(EmbeddingsRequest),
    response_model=None,
)
async def embeddings(request: Request) -> Response:
    """Embed texts. Requests of all callers share batches."""
    service, tenant = asking(request)
    body = await read(request, EmbeddingsRequest)
    texts = [body.input] if isinstance(body.input, str) else list(body.input)
    step = Embed(
        in_=Source(value=texts),
        out="vectors",
        engine=body.model or None,
        truncate_prompt_tokens=body.cut,
    )
    value, tokens, resource = await or_disconnect(request, _run(service, tenant, step))
    rows = _rows(value.vectors, body.dimensions)
    as_text = body.encoding_format == "base64"
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(row).decode() if as_text else row.tolist(),
        }
        for index, row in enumerate(rows)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return JSONResponse({"object": "list", "data": data, "model": resource, "usage": usage})


# Cohere's present client asks /v2; its older one and Jina's ask /v1, TEI's and vLLM's /rerank.
@router.post("/v2/rerank", response_model=None, include_in_schema=False)
@router.post("/rerank", response_model=None, include_in_schema=False)
@router.post("/v1/rerank", openapi_extra=schema(RerankRequest), response_model=None)
async def rerank(request: Request) -> Response:
    """Order documents by a query, the best first. POST /rerank and /v2/rerank do the same."""
    service, tenant = asking(request)
    body = await read(request, RerankRequest)
    items = [{"text": _text(one), "index": at} for at, one in enumerate(body.documents)]
    step = Rerank(
        in_=Source(value=items),
        query=Source(value=body.query),
        out="ranked",
        engine=body.model or None,
        k=None if body.top_n is None else min(body.top_n, len(items)),
        truncate_prompt_tokens=body.cut,
    )
    value, tokens, resource = await or_disconnect(request, _run(service, tenant, step))
    results = [
        {
            "index": item["index"],
            "relevance_score": item["score"],
            **({"document": {"text": item["text"]}} if body.return_documents else {}),
        }
        for item in value
    ]
    meta = {"billed_units": {"search_units": 1}, "tokens": {"input_tokens": tokens}}
    return JSONResponse({"model": resource, "results": results, "meta": meta})


async def _run(service: Service, tenant: str, step: Step) -> tuple[Any, int, str]:
    """Run one step in a session of its own: its value, its tokens and what ran it."""
    session: ServerSession = service.open(tenant, stays=False)
    try:
        [task] = await service.submit(session, SubmitBody(steps=(step,)))
        value = (await service.readers.get(session, task.writes[0])).value
        (last,) = session.tasks[task.id].steps
        return value, 0 if last.usage is None else last.usage.prompt_tokens, task.resource
    finally:
        service.close(session)


def _rows(found: Vectors, dimensions: int | None) -> Sequence[array[float]]:
    """The vectors as float32 numbers, cut to `dimensions`."""
    width, rows = found.width, found.rows()
    if dimensions is not None and dimensions > width:
        raise InvalidRequest(
            f"the model gives {width} numbers for a text, not {dimensions}", param="dimensions"
        )
    return rows if dimensions in (None, width) else [_cut(row, dimensions) for row in rows]


def _cut(row: array[float], dimensions: int | None) -> array[float]:
    """The first numbers of a vector, scaled to length 1 as OpenAI's are."""
    kept = row[:dimensions]
    length = math.hypot(*kept) or 1.0
    return array("f", (number / length for number in kept))


def _text(document: str | dict[str, Any]) -> str:
    text = document if isinstance(document, str) else document.get("text")
    if not isinstance(text, str):
        raise InvalidRequest("a document is a text, or an object with a 'text'", param="documents")
    return text
