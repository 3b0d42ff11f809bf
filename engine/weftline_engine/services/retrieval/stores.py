"""What every vector store does with an op: checks its inputs, and calls the library's table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from weftline_engine import api
from weftline_engine.services.retrieval import arrays, descriptions
from weftline_engine.services.retrieval.arrays import Array
from weftline_engine.services.retrieval.core import MAX_ITEMS, InputRefused, Item
from weftline_engine.services.retrieval.descriptions import DELETE, INGEST, SEARCH

MAX_HITS = 1000  # of one search


class NotAStore(Exception):
    """A file, directory or database cannot be opened as a store.

    The message is for the user, without the address of a database.
    """


@dataclass(frozen=True, slots=True)
class Document:
    """A stored text. `id` is unique in its tenant's part of the store."""

    id: str
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "text": self.text, "metadata": dict(self.metadata)}


class Table(Protocol):
    """A library's vector table. Every method sees one tenant's documents only."""

    def ingest(self, tenant: str, documents: Sequence[Document], vectors_ND: Array) -> None:
        """Add the documents, or replace those with equal ids; all or none.

        Raises Refused if the vectors' width differs from that of the vectors before.
        """
        ...

    def search(
        self, tenant: str, vector_D: Array, k: int, equal: Mapping[str, Any]
    ) -> list[tuple[Document, float]]:
        """The nearest `k` documents and their cosine similarity, the best first.

        `equal` names metadata that a document must have.
        """
        ...

    def delete(self, tenant: str, ids: Sequence[str]) -> int:
        """Delete documents; return how many there were."""
        ...

    def fetch(self, tenant: str, ids: Sequence[str]) -> list[Document]:
        """The documents with these ids, in the order of `ids`; unknown ids are left out."""
        ...

    def matching(self, tenant: str, equal: Mapping[str, Any]) -> list[str]:
        """The ids of the documents with this metadata, in their order; at most MAX_ITEMS."""
        ...


class StoreBackend:
    """The backend of a store: one op is one item, so that the writes of an op are one
    transaction."""

    pure: ClassVar[frozenset[str]] = frozenset()  # a search depends on what was written

    def __init__(self, name: str, table: Table) -> None:
        self._name = name
        self._table = table

    def describe(self) -> api.Description:
        return descriptions.of_store(self._name)

    def items(self, op: api.Op) -> Sequence[Item]:
        """The op itself, which checks its inputs when it is computed; each query of a search."""
        if op.kind != SEARCH:
            return [Item(op)]
        return [Item((op, vector_D)) for vector_D in arrays.rows_of(op.inputs.get("vectors"))]

    def fed(self, op: api.Op, values: Sequence[Any]) -> Sequence[Item]:
        """The queries of a search that come later, each as vectors."""
        if op.kind != SEARCH:
            raise InputRefused(f"{op.kind} takes its items at once")
        return [Item((op, row_D)) for value in values for row_D in arrays.rows_of(value)]

    def compute(self, kind: str, payloads: Sequence[Any]) -> Sequence[Any]:
        if kind == SEARCH:
            return [self._search(op, vector_D) for op, vector_D in payloads]
        verb = {INGEST: self._ingest, DELETE: self._delete}
        return [verb.get(kind, self._fetch)(op) for op in payloads]

    def finish(self, op: api.Op, results: Sequence[Any]) -> object:
        """The hits of each query, or the op's only result."""
        return {"hits": list(results)} if op.kind == SEARCH else results[0]

    def value(self, kind: str, result: Any) -> object:
        return result

    def _ingest(self, op: api.Op) -> dict[str, Any]:
        documents = documents_of(op.inputs.get("items"))
        found_ND = arrays.rows_of(op.inputs.get("vectors"))
        if len(documents) != len(found_ND):
            raise InputRefused(f"{len(documents)} texts came with {len(found_ND)} vectors")
        # The last of two equal ids counts, as it would in two ops.
        last = {document.id: at for at, document in enumerate(documents)}
        rows = sorted(last.values())
        if rows:
            self._table.ingest(tenant_of(op), [documents[row] for row in rows], found_ND[rows])
        return {"ids": [document.id for document in documents], "count": len(rows)}

    def _search(self, op: api.Op, vector_D: Array) -> list[dict[str, Any]]:
        k, equal = op.inputs.get("k"), filter_of(op)
        if not isinstance(k, int) or not 1 <= k <= MAX_HITS:
            raise InputRefused(f"k must be between 1 and {MAX_HITS}")
        found = self._table.search(tenant_of(op), vector_D, k, equal)
        return [{**document.to_json(), "score": score} for document, score in found]

    def _delete(self, op: api.Op) -> dict[str, Any]:
        return {"count": self._table.delete(tenant_of(op), self._chosen(op))}

    def _fetch(self, op: api.Op) -> dict[str, Any]:
        found = self._table.fetch(tenant_of(op), self._chosen(op))
        return {"items": [document.to_json() for document in found]}

    def _chosen(self, op: api.Op) -> list[str]:
        """The op's ids, and those of the documents that match its filter, if it has one."""
        equal = filter_of(op)
        more = self._table.matching(tenant_of(op), equal) if equal else []
        return list(dict.fromkeys([*ids_of(op), *more]))


def documents_of(items: object) -> list[Document]:
    """The documents of an op. Raises Refused unless each has a text, and JSON as metadata.

    One without an id gets the hash of its content, so that adding it again changes nothing.
    """
    if not isinstance(items, list) or len(items) > MAX_ITEMS:
        raise InputRefused(f"ingest takes a list of at most {MAX_ITEMS} items")
    documents = []
    for item in items:
        text, metadata = item.get("text"), item.get("metadata") or {}
        if not isinstance(text, str) or not isinstance(metadata, dict):
            raise InputRefused("an item has a 'text', and an object as its 'metadata'")
        id = item.get("id") or content_id(text, metadata)
        if not isinstance(id, str) or len(id) > 512:
            raise InputRefused("an item's id is text of at most 512 characters")
        documents.append(Document(id, text, metadata))
    return documents


def content_id(text: str, metadata: Mapping[str, Any]) -> str:
    """32 hex digits that stand for a text and its metadata."""
    content = json.dumps([text, metadata], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def tenant_of(op: api.Op) -> str:
    """Whose documents the op is about. The server sets it; a client cannot."""
    tenant = op.inputs.get("tenant")
    assert isinstance(tenant, str), "the server names the tenant of every op"
    return tenant


def ids_of(op: api.Op) -> list[str]:
    """The ids of an op. Raises Refused unless it holds a list of text."""
    ids = op.inputs.get("ids")
    if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
        raise InputRefused(f"{op.kind} takes a list of ids")
    return ids


def filter_of(op: api.Op) -> Mapping[str, Any]:
    """The metadata that documents must have. Raises Refused for values that are not plain."""
    equal = op.inputs.get("filter") or {}
    if not isinstance(equal, dict) or not all(map(_is_plain, equal.values())):
        raise InputRefused("a filter maps names of metadata to texts, numbers or booleans")
    return equal


def _is_plain(value: object) -> bool:
    return isinstance(value, (str, int, float, bool))
