"""The descriptions of engines that work on items. It imports none of their libraries.

An engine may start only when it is first used, so the server needs its description before. Only the
batch profile is missing then, because it is measured when the engine starts.
"""

from __future__ import annotations

from pathlib import Path

from weftline_engine import api

EMBED, RERANK = "embed", "rerank"
INGEST, SEARCH, DELETE, FETCH = "ingest", "search", "delete", "fetch"
MAX_RUNNING = 1024  # ops that an engine may have at a time


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
