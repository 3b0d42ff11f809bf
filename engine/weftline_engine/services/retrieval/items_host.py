"""The program of an items engine's child process: `python -m
weftline_engine.services.retrieval.items_host`.

A thread reads verbs from the socket. The main thread computes batches, and sends the events of each
as one frame. The settings stand in the environment, where other users cannot read them.
"""

from __future__ import annotations

import argparse
import os
import sys

from weftline_engine import api
from weftline_engine.services.retrieval.batching import Slots
from weftline_engine.services.retrieval.config import (
    EmbedderConfig,
    Store,
    StoreConfig,
    from_environment,
)
from weftline_engine.services.retrieval.core import MOST_ITEMS, MOST_TOKENS, ItemBackend, ItemsCore
from weftline_engine.services.retrieval.embedder import SentenceBackend
from weftline_engine.services.retrieval.stores import StoreBackend, Table
from weftline_engine.transport import host, wire

# The tokens of a batch, by those of the smallest one that is efficient: MiniLM's is 4 or 8 texts of
# 32. Its CPU time for 8 chunks of 256 is 0.59, 0.55, 0.55 and 0.57 s in batches of 1, 2, 4 and 8. A
# question beside an ingest waits for the batch that runs.
TIMES = 6


def main() -> None:
    """Load the backend, send its description or the failure, and serve until the socket closes."""
    parser = argparse.ArgumentParser(
        prog="weftline_engine.services.retrieval.items_host", description=__doc__
    )
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
    slots = batches(description)
    core = ItemsCore(made, most_items=slots.items, most_tokens=slots.tokens, kept=config.kept)
    connection.sendall(wire.encode([description]))
    host.serve(core, connection, verbs)


def batches(description: api.Description) -> Slots:
    """The most items and tokens of a batch, from the measured profile.

    Of long texts, few are an efficient batch. A larger one is hardly faster, and a short text that
    comes meanwhile waits for its end.
    """
    if not description.batch_profile:
        return Slots(MOST_ITEMS, MOST_TOKENS)
    kind = description.kinds[0]
    tokens = description.efficient_tokens(kind)
    return Slots(
        description.efficient_items(kind), MOST_TOKENS if tokens is None else TIMES * tokens
    )


def backend(config: EmbedderConfig | StoreConfig) -> ItemBackend:
    """The backend that the settings describe. Imports its library."""
    if isinstance(config, EmbedderConfig):
        return SentenceBackend(config.model, config.name, config.device)
    return StoreBackend(config.name, _table(config))


def _table(config: StoreConfig) -> Table:
    if config.store == Store.MEMORY:
        from weftline_engine.services.retrieval.plain_backends import MemoryTable

        return MemoryTable()
    if config.store == Store.PGVECTOR:
        from weftline_engine.services.retrieval.pgvector import PgTable

        assert config.dsn is not None, "checked by StoreConfig"
        return PgTable(config.dsn)
    assert config.path is not None, "checked by StoreConfig"
    from weftline_engine.services.retrieval.sqlite import SqliteTable

    return SqliteTable(config.path)


if __name__ == "__main__":
    main()
