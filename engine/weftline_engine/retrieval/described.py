"""What engines of items say of themselves, before they run and when they do.

The server reads it in advance of an engine that starts when it is first used. Only the batch
profile is missing then, which is measured at the engine's start. Imports no library.
"""

from __future__ import annotations

from pathlib import Path

from weftline_engine import api

EMBED, RERANK = "embed", "rerank"
INGEST, SEARCH, DELETE, FETCH = "ingest", "search", "delete", "fetch"
MAX_RUNNING = 1024  # ops in hand


def of_model(
    name: str, kinds: tuple[str, ...], profile: tuple[tuple[int, int, float], ...] = ()
) -> api.Description:
    """An embedder or a reranker, with its measured `profile` once it runs."""
    return api.Description(
        model=name,
        kinds=kinds,
        capabilities=(api.Capability.FEED,),
        max_running=MAX_RUNNING,
        batch_profile=profile,
    )


def of_endpoint(name: str, kind: str) -> api.Description:
    """An embedder or a reranker behind HTTP, which takes whole ops."""
    return api.Description(model=name, kinds=(kind,), capabilities=(), max_running=MAX_RUNNING)


def of_store(name: str) -> api.Description:
    """A store. Nothing is measured: it takes one op at a time."""
    return api.Description(
        model=name,
        kinds=(INGEST, SEARCH, DELETE, FETCH),
        capabilities=(api.Capability.FEED,),
        max_running=MAX_RUNNING,
    )


def kinds_of(model: Path) -> tuple[str, ...]:
    """The kinds of op that a directory of sentence-transformers runs.

    A classifier of pairs only reranks. Other models list their modules, and rerank by MaxSim.
    """
    config = model / "config.json"
    classifies = not (model / "modules.json").exists() and "ForSequenceClassification" in (
        config.read_text(encoding="utf-8") if config.exists() else ""
    )
    return (RERANK,) if classifies else (EMBED, RERANK)
