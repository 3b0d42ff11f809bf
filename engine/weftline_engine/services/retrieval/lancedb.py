"""A vector store in a directory of LanceDB, with one table for each tenant.

LanceDB commits a whole write or nothing of it. A search compares the query with all vectors, so the
result is exact.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa

from weftline_engine.services.retrieval.arrays import Array
from weftline_engine.services.retrieval.core import MAX_ITEMS, InputRefused
from weftline_engine.services.retrieval.stores import MAX_HITS, Document, NotAStore

PORTION = 1000  # ids in one condition
COLUMNS = ["id", "text", "metadata"]


class LanceTable:
    """The documents of all tenants in the directory `path`, which is made if it does not exist."""

    def __init__(self, path: Path) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._db = lancedb.connect(str(path))
        except (OSError, RuntimeError, ValueError) as error:
            raise NotAStore(f"{path} cannot be used as a store: {error}") from None
        self._path = path
        self._open: dict[str, Any] = {}

    def ingest(self, tenant: str, documents: Sequence[Document], vectors_ND: Array) -> None:
        """Add or replace the documents in one commit. Raises Refused for another width."""
        width = int(vectors_ND.shape[1])
        table = self._table(tenant)
        if table is not None:
            _check_width(table, width)
        rows = pa.table(
            {
                "id": [one.id for one in documents],
                "text": [one.text for one in documents],
                "metadata": [json.dumps(one.metadata) for one in documents],
                "vector": pa.FixedSizeListArray.from_arrays(
                    pa.array(vectors_ND.reshape(-1), pa.float32()), width
                ),
            },
            schema=_schema(width),
        )
        if table is None:
            self._open[tenant] = self._db.create_table(_name(tenant), data=rows)
            return
        merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(rows)

    def search(
        self, tenant: str, vector_D: Array, k: int, equal: Mapping[str, Any]
    ) -> list[tuple[Document, float]]:
        """The nearest documents, by cosine similarity. Equal scores are ordered by id.

        LanceDB cannot look into JSON: the ids that match a filter are found first.
        """
        table = self._table(tenant)
        if table is None:
            return []
        _check_width(table, len(vector_D))
        if not vector_D.any():
            chosen = sorted(_matching(table, equal))[:k]
            return [(one, 0.0) for one in self.fetch(tenant, chosen)]
        chosen = sorted(_matching(table, equal)) if equal else []
        found: list[tuple[Document, float]] = []
        for part in _portions(chosen) if equal else [None]:
            query = table.search(vector_D, vector_column_name="vector").distance_type("cosine")
            if part is not None:
                query = query.where(_among(part), prefilter=True)
            # Equal scores at the end of the list have an order: all hits up to the limit are read.
            rows = query.select([*COLUMNS, "_distance"]).limit(min(2 * k, MAX_HITS) + k).to_list()
            found += [(_document(row), _similarity(row["_distance"])) for row in rows]
        return sorted(found, key=lambda hit: (-hit[1], hit[0].id))[:k]

    def delete(self, tenant: str, ids: Sequence[str]) -> int:
        table = self._table(tenant)
        if table is None or not ids:
            return 0
        before = int(table.count_rows())
        table.delete(_among(ids))
        return before - int(table.count_rows())

    def fetch(self, tenant: str, ids: Sequence[str]) -> list[Document]:
        table = self._table(tenant)
        if table is None:
            return []
        found: dict[str, Document] = {}
        for part in _portions(ids):
            rows = table.search().where(_among(part)).select(COLUMNS).limit(len(part)).to_list()
            found |= {row["id"]: _document(row) for row in rows}
        return [found[id] for id in ids if id in found]

    def matching(self, tenant: str, equal: Mapping[str, Any]) -> list[str]:
        """The ids of the documents with this metadata."""
        table = self._table(tenant)
        return [] if table is None else sorted(_matching(table, equal))[:MAX_ITEMS]

    def _table(self, tenant: str) -> Any:
        """The tenant's table; None before its first document."""
        name = _name(tenant)
        if tenant not in self._open and (self._path / f"{name}.lance").is_dir():
            self._open[tenant] = self._db.open_table(name)
        return self._open.get(tenant)


def _name(tenant: str) -> str:
    """A table's name, which may hold letters and digits alone."""
    return "t" + hashlib.sha256(tenant.encode()).hexdigest()[:40]


def _schema(width: int) -> Any:
    texts = [pa.field(name, pa.string(), nullable=False) for name in COLUMNS]
    vector = pa.field("vector", pa.list_(pa.float32(), width))
    return pa.schema([*texts, vector])


def _check_width(table: Any, width: int) -> None:
    held = table.schema.field("vector").type.list_size
    if held != width:
        raise InputRefused(
            f"the store holds vectors of {held} numbers and got {width}: use the embedder that "
            "filled it"
        )


def _matching(table: Any, equal: Mapping[str, Any]) -> Iterator[str]:
    for batch in table.search().select(["id", "metadata"]).to_batches():
        for row in batch.to_pylist():
            metadata = json.loads(row["metadata"])
            if all(metadata.get(name) == value for name, value in equal.items()):
                yield row["id"]


def _portions(ids: Sequence[str]) -> list[Sequence[str]]:
    return [ids[at : at + PORTION] for at in range(0, len(ids), PORTION)]


def _among(ids: Sequence[str]) -> str:
    """A condition on the id. A quote inside text is written twice, as in SQL."""
    quoted = ", ".join("'" + id.replace("'", "''") + "'" for id in ids)
    return f"id IN ({quoted})"


def _document(row: Mapping[str, Any]) -> Document:
    return Document(row["id"], row["text"], json.loads(row["metadata"]))


def _similarity(distance: float | None) -> float:
    """The cosine similarity; a stored vector of zeros has no distance, and counts as 0."""
    return 0.0 if distance is None or distance != distance else 1.0 - distance
