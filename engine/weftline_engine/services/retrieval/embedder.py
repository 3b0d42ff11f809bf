"""Embeds and reranks texts with a model of sentence-transformers, in the engine's own process.

N = texts, D = dimensions of a vector, T = tokens of a text.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from weftline_engine import api
from weftline_engine.services.retrieval import arrays, descriptions
from weftline_engine.services.retrieval.core import (
    CHARS_PER_TOKEN,
    InputRefused,
    InputTooLong,
    Item,
)
from weftline_engine.services.retrieval.descriptions import EMBED, RERANK

PROFILED_ITEMS = (1, 4, 8, 32)  # batch sizes that are timed at start
PROFILED_TOKENS = 32  # of each text
MAX_CHARS = 1_000_000  # of one text


def texts_of(op: api.Op, name: str = "texts") -> list[str]:
    """The op's texts. Raises Refused unless it holds a list of text."""
    return checked_texts(op, op.inputs.get(name))


def checked_texts(op: api.Op, texts: object) -> list[str]:
    """`texts`, if they are a list of text. Raises Refused."""
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InputRefused(f"{op.kind} takes a list of texts")
    if any(len(text) > MAX_CHARS for text in texts):
        raise InputRefused(f"a text has more than {MAX_CHARS} characters: split it first")
    return texts


def query_of(op: api.Op) -> str:
    """The query of a rerank op. Raises Refused unless it is text."""
    query = op.inputs.get("query")
    if not isinstance(query, str):
        raise InputRefused("rerank takes a query, which is text")
    return query


def size(text: str) -> int:
    """The tokens of a text, estimated."""
    return 1 + len(text) // CHARS_PER_TOKEN


def most_tokens(op: api.Op, limit: int | None) -> tuple[int | None, bool]:
    """The most tokens that a text of the op may have, and whether a longer one is cut.

    -1 is as many as the model takes. Raises Refused for more than that.
    """
    asked = op.inputs.get("truncate_prompt_tokens")
    if asked is None:
        return limit, False
    if not isinstance(asked, int) or (limit is not None and asked > limit):
        raise InputRefused(f"truncate_prompt_tokens is -1, or a number up to {limit}")
    return (limit if asked == -1 else asked), True


class TextBackend(ABC):
    """The part that all models of texts share: their items, and the values of their results.

    A payload is a text, or a query and a text.
    """

    pure: ClassVar[frozenset[str]] = frozenset({EMBED, RERANK})

    def items(self, op: api.Op) -> Sequence[Item]:
        """One item a text; a rerank item holds the query too."""
        return self.fed(op, texts_of(op))

    def fed(self, op: api.Op, values: Sequence[Any]) -> Sequence[Item]:
        """The items of texts that come later. A text that is too long is refused, or cut where the
        op says so."""
        texts = checked_texts(op, values)
        payloads: Sequence[Any] = texts
        if op.kind == RERANK:
            query = query_of(op)
            payloads = [(query, text) for text in texts]
        limit = self.limit(op.kind)
        most, cuts = most_tokens(op, limit)
        items = []
        for at, (payload, length) in enumerate(
            zip(payloads, self.lengths(op.kind, payloads), strict=True)
        ):
            fits = most is None or length <= most
            if not fits and not cuts:
                assert most is not None, "without a limit every text fits"
                raise InputTooLong(at, length, most)
            if most is None or fits:
                items.append(Item(payload, length))
            else:
                items.append(Item(self.cut(op.kind, payload, most), most))
        return items

    def limit(self, kind: str) -> int | None:
        """The tokens that the model takes, None where that is not known."""
        return None

    @abstractmethod
    def lengths(self, kind: str, payloads: Sequence[Any]) -> Sequence[int]:
        """The tokens that the model reads of each payload."""

    @abstractmethod
    def cut(self, kind: str, payload: Any, most: int) -> Any:
        """The beginning of a payload, of at most so many tokens."""

    def value(self, kind: str, result: Any) -> object:
        """A vector, or a score."""
        return result if kind == RERANK else arrays.vectors_of(result[None])

    def finish(self, op: api.Op, results: Sequence[Any]) -> object:
        """Vectors, or `scores`."""
        if op.kind == RERANK:
            return {"scores": list(results)}
        return arrays.vectors_of(results)


class SentenceBackend(TextBackend):
    """A sentence-transformers model: `embed` gives one vector a text, `rerank` one score.

    A cross-encoder scores pairs of query and text. Any other model scores them by MaxSim (Khattab
    and Zaharia 2020): the sum over the query's tokens of the best similarity with a token of the
    text. A model that was not trained for MaxSim ranks no better with it than by its embeddings,
    but the computation is as large as that of a trained one.
    """

    def __init__(self, model: Path, name: str, device: str | None = None) -> None:
        from sentence_transformers import CrossEncoder, SentenceTransformer
        from transformers.utils import logging

        logging.disable_progress_bar()  # a bar would stand between the lines of the server's log
        self._name = name
        self._last_query: tuple[str, np.ndarray[Any, Any]] | None = None
        self._cross: CrossEncoder | None = None
        self._bi: SentenceTransformer | None = None
        if EMBED not in descriptions.kinds_of(model):
            self._cross = CrossEncoder(str(model), device=device, local_files_only=True)
        else:
            self._bi = SentenceTransformer(str(model), device=device, local_files_only=True)

    def describe(self) -> api.Description:
        """The description, with a batch profile that takes about a second to measure."""
        kind = RERANK if self._bi is None else EMBED
        self._timed(kind, 1)  # the first batch also allocates buffers, so it is not measured
        kinds = (RERANK,) if self._bi is None else (EMBED, RERANK)
        return descriptions.of_model(
            self._name, kinds, tuple(self._timed(kind, items) for items in PROFILED_ITEMS)
        )

    def limit(self, kind: str) -> int | None:
        """The tokens of a text, or of a query and a text together; of MaxSim, of each of both."""
        model = self._bi or self._cross
        most = getattr(model, "max_seq_length", None)
        return most if isinstance(most, int) else None

    def lengths(self, kind: str, payloads: Sequence[Any]) -> Sequence[int]:
        """Counted by the model's tokenizer, with the tokens that it adds."""
        if kind == EMBED:
            return self._counts(list(payloads))
        if self._cross is not None:
            return self._counts([q for q, _ in payloads], [text for _, text in payloads])
        queries = dict.fromkeys(query for query, _ in payloads)
        counts = dict(zip(queries, self._counts(list(queries)), strict=True))
        texts = self._counts([text for _, text in payloads])
        return [max(counts[q], count) for (q, _), count in zip(payloads, texts, strict=True)]

    def cut(self, kind: str, payload: Any, most: int) -> Any:
        """The text up to the end of its last token that fits. Of a pair that is read as one the
        query stays whole."""
        if kind == EMBED:
            return self._cut(payload, most)
        query, text = payload
        if self._cross is None:
            return self._cut(query, most), self._cut(text, most)
        [both], [alone] = self._counts([query], [text]), self._counts([text])
        if both - most >= alone:
            raise InputRefused(f"the query leaves no room for a text in {most} tokens: shorten it")
        return query, self._cut(text, alone - (both - most))

    def _counts(self, texts: list[str], pairs: list[str] | None = None) -> list[int]:
        read = self.tokenizer(texts, pairs, truncation=False, verbose=False)
        return [len(ids) for ids in read["input_ids"]]

    def _cut(self, text: str, most: int) -> str:
        read = self.tokenizer(
            text, truncation=True, max_length=most, return_offsets_mapping=True, verbose=False
        )
        return text[: max(end for _, end in read["offset_mapping"])]

    @property
    def tokenizer(self) -> Any:
        model = self._bi or self._cross
        assert model is not None
        return model.tokenizer

    def compute(self, kind: str, payloads: Sequence[Any]) -> Sequence[Any]:
        """Vectors (D,) of texts, or the scores of pairs."""
        if kind == EMBED:
            assert self._bi is not None, "announced by a model that embeds"
            return list(np.asarray(self._bi.encode(list(payloads), batch_size=len(payloads))))
        if self._cross is not None:
            scores = self._cross.predict(list(payloads), batch_size=len(payloads))
            return [float(score) for score in np.asarray(scores).reshape(len(payloads), -1)[:, -1]]
        return self._max_sim(payloads)

    def _max_sim(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        # A query among the texts would be padded to their length.
        queries = {query: self._query_TD(query) for query in dict.fromkeys(q for q, _ in pairs)}
        texts = list(dict.fromkeys(text for _, text in pairs))
        found = dict(zip(texts, self._tokens(texts), strict=True))
        return [float((queries[q] @ found[text].T).max(axis=1).mean()) for q, text in pairs]

    def _query_TD(self, query: str) -> np.ndarray[Any, Any]:
        """The token vectors of a query. The batches of one op ask for the same one."""
        if self._last_query is None or self._last_query[0] != query:
            [rows_TD] = self._tokens([query])
            self._last_query = query, rows_TD
        return self._last_query[1]

    def _tokens(self, texts: list[str]) -> list[np.ndarray[Any, Any]]:
        """The normalised vectors (T, D) of the tokens of each text."""
        assert self._bi is not None
        made = self._bi.encode(texts, output_value="token_embeddings", batch_size=len(texts))
        rows = [one.cpu().numpy() for one in made]
        return [one / np.linalg.norm(one, axis=1, keepdims=True).clip(1e-9) for one in rows]

    def _timed(self, kind: str, items: int) -> tuple[int, int, float]:
        text = "weft " * PROFILED_TOKENS
        payloads = [text if kind == EMBED else ("weft", text)] * items
        began = time.perf_counter()
        self.compute(kind, payloads)
        return items, items * PROFILED_TOKENS, time.perf_counter() - began
