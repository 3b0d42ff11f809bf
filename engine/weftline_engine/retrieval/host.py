"""The program of an items engine's child process: `python -m weftline_engine.retrieval.host`.

A thread reads verbs from the socket. The main thread computes batches, and sends the events of each
as one frame. The settings stand in the environment, where other users cannot read them.
"""

from __future__ import annotations

import argparse
import os
import sys

from weftline_engine.retrieval.config import EmbedderConfig, Store, StoreConfig, from_environment
from weftline_engine.retrieval.core import Backend, ItemsCore
from weftline_engine.retrieval.embedder import SentenceBackend
from weftline_engine.retrieval.stores import StoreBackend, Table
from weftline_engine.transport import host, wire


def main() -> None:
    """Load the backend, send its description or the failure, and serve until the socket closes."""
    parser = argparse.ArgumentParser(prog="weftline_engine.retrieval.host", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="socket to the parent")
    parser.add_argument("--name", help="the engine's name; it tells processes apart in ps")
    config = from_environment(os.environ)
    if config.cores:
        os.sched_setaffinity(0, config.cores)
    connection, verbs = host.connect(parser.parse_args().fd)
    try:
        made = backend(config)
        description = made.describe()
    except Exception as error:  # whatever a library raises is the reason that the operator reads
        reason = f"{config.name}: {error or type(error).__name__}"
        connection.sendall(wire.encode([wire.LoadFailed(reason)]))
        sys.exit(1)
    core = ItemsCore(made, kept=config.kept)
    if description.batch_profile:
        kind = description.kinds[0]
        core = ItemsCore(made, most_items=description.efficient_items(kind), kept=config.kept)
    connection.sendall(wire.encode([description]))
    host.serve(core, connection, verbs)


def backend(config: EmbedderConfig | StoreConfig) -> Backend:
    """The backend that the settings describe. Imports its library."""
    if isinstance(config, EmbedderConfig):
        return SentenceBackend(config.model, config.name, config.device)
    return StoreBackend(config.name, _table(config))


def _table(config: StoreConfig) -> Table:
    if config.store == Store.MEMORY:
        from weftline_engine.retrieval.memory import MemoryTable

        return MemoryTable()
    if config.store == Store.PGVECTOR:
        from weftline_engine.retrieval.pgvector import PgTable

        assert config.dsn is not None, "checked by StoreConfig"
        return PgTable(config.dsn)
    assert config.path is not None, "checked by StoreConfig"
    if config.store == Store.LANCEDB:
        from weftline_engine.retrieval.lancedb import LanceTable

        return LanceTable(config.path)
    from weftline_engine.retrieval.sqlite import SqliteTable

    return SqliteTable(config.path)


if __name__ == "__main__":
    main()
