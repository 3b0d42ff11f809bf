"""The settings of embedders, rerankers and stores. Imports none of their libraries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

VARIABLE = "WEFTLINE_ITEMS_ENGINE"  # holds the settings in the child's environment


class Store(StrEnum):
    """The libraries that hold vectors."""

    SQLITE = "sqlite"
    PGVECTOR = "pgvector"
    MEMORY = "memory"  # nothing is kept: for tests


@dataclass(frozen=True, slots=True, kw_only=True)
class _Child:
    """An engine of items in a process of its own. `cores` are CPU cores; empty means all.

    The engine keeps the results of `kept` items for equal ones; 0 keeps none.
    """

    name: str
    cores: tuple[int, ...] = ()
    kept: int | None = None

    module: ClassVar[str] = "weftline_engine.services.retrieval.items_host"

    def arguments(self, fd: int) -> list[str]:
        """The child's command line. Every user of the machine can read it: it holds no secret."""
        return ["--fd", str(fd), "--name", self.name]

    def environment(self, outer: Mapping[str, str]) -> dict[str, str]:
        """The child's environment, which only its user can read."""
        fields = {"is": type(self).__name__, **asdict(self)}
        return {**outer, VARIABLE: json.dumps(fields, default=str)}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderConfig(_Child):
    """A model of sentence-transformers in a local directory: an embedder or a cross-encoder."""

    model: Path
    device: str | None = None  # None: a CUDA device where there is one


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig(_Child):
    """A vector store. `path` is the file of sqlite, `dsn` the address of PostgreSQL."""

    store: Store | str = Store.SQLITE
    path: Path | None = None
    dsn: str | None = None

    def __post_init__(self) -> None:
        if self.store == "lancedb":
            raise ValueError("store 'lancedb' is gone: use 'sqlite', and index the documents again")
        if self.store not in list(Store):
            raise ValueError(f"store {self.store!r} is none of {', '.join(Store)}")
        if self.store == Store.SQLITE and self.path is None:
            raise ValueError(f"a store of {self.store} needs a path")
        if self.store == Store.PGVECTOR and not self.dsn:
            raise ValueError("a store of pgvector needs the address of a database, dsn")


def from_environment(environment: Mapping[str, str]) -> EmbedderConfig | StoreConfig:
    """The settings that `environment` wrote."""
    fields = json.loads(environment[VARIABLE])
    kind = {one.__name__: one for one in (EmbedderConfig, StoreConfig)}[fields.pop("is")]
    fields["cores"] = tuple(fields["cores"])
    for name in ("model", "path"):
        if fields.get(name) is not None:
            fields[name] = Path(fields[name])
    return kind(**fields)
