"""POST /score and /v1/score, as vLLM has them: how well texts fit together, in the order given."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from weftline.contract.bodies import LooseBody
from weftline.contract.errors import InvalidRequest
from weftline.contract.steps import Rerank, Source
from weftline_server.http.direct import Direct
from weftline_server.http.json_bodies import or_disconnect, read, schema
from weftline_server.http.retrieval import MAX_INPUTS, run_steps
from weftline_server.http.state import asking

router = APIRouter(tags=["retrieval"], route_class=Direct)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest(LooseBody):
    """One text and several, or pairs: `queries` and `documents` are newer names of both fields."""

    text_1: str | tuple[str, ...] | None = None
    text_2: str | tuple[str, ...] | None = None
    queries: str | tuple[str, ...] | None = None
    documents: str | tuple[str, ...] | None = None
    model: str | None = None
    truncate_prompt_tokens: int | None = None

    def pairs(self) -> list[tuple[str, str]]:
        """The texts that are compared. Raises InvalidRequest for lists that make no pairs."""
        first = _texts(self.text_1, self.queries, ("text_1", "queries"))
        second = _texts(self.text_2, self.documents, ("text_2", "documents"))
        if len(first) == 1:
            first *= len(second)
        if len(first) != len(second):
            raise InvalidRequest(
                f"{len(first)} texts go with one text or with as many, not with {len(second)}",
                param="text_1" if self.queries is None else "queries",
            )
        return list(zip(first, second, strict=True))


def _texts(
    old: str | tuple[str, ...] | None, new: str | tuple[str, ...] | None, names: tuple[str, str]
) -> tuple[str, ...]:
    given = new if old is None else old
    if given is None or (old is not None and new is not None):
        raise InvalidRequest(f"give either {names[0]} or {names[1]}", param=names[0])
    texts = (given,) if isinstance(given, str) else given
    if not 1 <= len(texts) <= MAX_INPUTS:
        name = names[1] if old is None else names[0]
        raise InvalidRequest(f"{name} holds 1 to {MAX_INPUTS} texts, not {len(texts)}", param=name)
    return texts


@router.post("/score", response_model=None, include_in_schema=False)
@router.post("/v1/score", openapi_extra=schema(ScoreRequest), response_model=None)
async def score(request: Request) -> Response:
    """Score pairs of texts by a reranker or an embedder. POST /score does the same."""
    service, tenant = asking(request)
    body = await read(request, ScoreRequest)
    pairs = body.pairs()
    by_query: dict[str, list[int]] = {}
    for index, (query, _) in enumerate(pairs):
        by_query.setdefault(query, []).append(index)
    steps = [
        _step(number, query, [(index, pairs[index][1]) for index in indices], body)
        for number, (query, indices) in enumerate(by_query.items())
    ]
    values, tokens, resource = await or_disconnect(request, run_steps(service, tenant, steps))
    scores = {item["index"]: item["score"] for value in values for item in value}
    data = [{"index": at, "object": "score", "score": scores[at]} for at in range(len(pairs))]
    made = {
        "id": f"score-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": resource,
        "data": data,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return JSONResponse(made)


def _step(
    number: int, query: str, documents: Sequence[tuple[int, str]], body: ScoreRequest
) -> Rerank:
    items = [{"text": text, "index": index} for index, text in documents]
    return Rerank(
        in_=Source(value=items),
        query=Source(value=query),
        out=f"scores_{number}",
        engine=body.model or None,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
    )
