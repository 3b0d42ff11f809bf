"""Backends without a library, a model or a file, for tests and for `--engine null`.

The backends' results are simple but meaningful: texts with equal words have near vectors, and a
search is exact.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weftline_engine import api
from weftline_engine.services.retrieval import descriptions
from weftline_engine.services.retrieval.arrays import Array
from weftline_engine.services.retrieval.core import MAX_ITEMS, InputRefused
from weftline_engine.services.retrieval.descriptions import EMBED, RERANK
from weftline_engine.services.retrieval.embedder import TextBackend
from weftline_engine.services.retrieval.stores import Document

DIMENSIONS = 32
MOST_WORDS = 8192


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def vector_of(text: str) -> Array:
    """A vector (DIMENSIONS,) of length 1. A word adds to one component, given by its checksum."""
    vector = np.zeros(DIMENSIONS, dtype=np.float32)
    for word in words_of(text) or [""]:
        vector[zlib.crc32(word.encode()) % DIMENSIONS] += 1
    return np.asarray(vector / np.linalg.norm(vector))


class WordBackend(TextBackend):
    """Embeds by counting words; reranks by the share of the query's words that a text has.

    A word is a token, and a text has at most `most` of them.
    """

    def __init__(self, name: str, most: int = MOST_WORDS) -> None:
        self._name, self._most = name, most

    def describe(self) -> api.Description:
        return descriptions.of_model(self._name, (EMBED, RERANK))

    def limit(self, kind: str) -> int | None:
        return self._most

    def lengths(self, kind: str, payloads: Sequence[Any]) -> Sequence[int]:
        """Of a query and a text, the words of both."""
        if kind == EMBED:
            return [len(words_of(text)) for text in payloads]
        return [len(words_of(query)) + len(words_of(text)) for query, text in payloads]

    def cut(self, kind: str, payload: Any, most: int) -> Any:
        if kind == EMBED:
            return " ".join(words_of(payload)[:most])
        query, text = payload
        left = max(0, most - len(words_of(query)))
        return query, " ".join(words_of(text)[:left])

    def compute(self, kind: str, payloads: Sequence[Any]) -> Sequence[Any]:
        """Array, or scores between 0 and 1."""
        if kind == EMBED:
            return [vector_of(text) for text in payloads]
        return [_overlap(query, text) for query, text in payloads]


def _overlap(query: str, text: str) -> float:
    asked = set(words_of(query))
    return len(asked & set(words_of(text))) / max(1, len(asked))


class MemoryTable:
    """A vector table in memory. It ends with its process."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, tuple[Document, Array]]] = {}

    def ingest(self, tenant: str, documents: Sequence[Document], vectors_ND: Array) -> None:
        """Add or replace the documents. Raises Refused for another width."""
        rows = self._rows.setdefault(tenant, {})
        self._check(rows, int(vectors_ND.shape[1]))
        rows |= {one.id: (one, vector) for one, vector in zip(documents, vectors_ND, strict=True)}

    def search(
        self, tenant: str, vector_D: Array, k: int, equal: Mapping[str, Any]
    ) -> list[tuple[Document, float]]:
        """The nearest documents by cosine similarity. Equal scores are ordered by id."""
        rows = self._rows.get(tenant, {})
        self._check(rows, len(vector_D))
        found = [
            (one, _cosine(vector, vector_D)) for one, vector in rows.values() if _has(one, equal)
        ]
        return sorted(found, key=lambda hit: (-hit[1], hit[0].id))[:k]

    def delete(self, tenant: str, ids: Sequence[str]) -> int:
        rows = self._rows.get(tenant, {})
        return sum(rows.pop(id, None) is not None for id in ids)

    def fetch(self, tenant: str, ids: Sequence[str]) -> list[Document]:
        rows = self._rows.get(tenant, {})
        return [rows[id][0] for id in ids if id in rows]

    def matching(self, tenant: str, equal: Mapping[str, Any]) -> list[str]:
        """The ids of the documents with this metadata."""
        rows = self._rows.get(tenant, {})
        return sorted(id for id, (one, _) in rows.items() if _has(one, equal))[:MAX_ITEMS]

    def _check(self, rows: Mapping[str, tuple[Document, Array]], width: int) -> None:
        for _, vector in rows.values():
            if len(vector) != width:
                raise InputRefused(
                    f"the store holds vectors of {len(vector)} numbers and got {width}: use the "
                    "embedder that filled it"
                )
            return


def _has(document: Document, equal: Mapping[str, Any]) -> bool:
    return all(document.metadata.get(name) == value for name, value in equal.items())


def _cosine(a_D: Array, b_D: Array) -> float:
    length = float(np.linalg.norm(a_D) * np.linalg.norm(b_D))
    return float(a_D @ b_D) / length if length else 0.0
