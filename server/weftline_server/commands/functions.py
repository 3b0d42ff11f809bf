"""`weftline doctor --config`: starts each engine of items and function of a file once.

Each runs in a process of its own, with the settings of its table. The exit code is 1 if one does
not start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from weftline_engine import api
from weftline_server.commands.retrieval_tables import Spec, engine_name, from_tables
from weftline_server.commands.settings import load
from weftline_server.commands.tables import aligned

_WHEN = {"demand": "when it is first used", "eager": "with the server"}


def run(path: str) -> int:
    """Start the engines, and print what became of each. Raises InvalidRequest."""
    specs = from_tables(load(Path(path), {}).retrieval)
    if not specs:
        print(f"{path} has no [[embedder]], [[reranker]], [[store]] or [[function]]")
        return 0
    errors = asyncio.run(_errors(specs))
    rows = [
        (
            engine_name(spec),
            "starts" if error is None else "does not start",
            _WHEN[spec.start],
            error or "",
        )
        for spec, error in zip(specs, errors, strict=True)
    ]
    print(aligned(("engine", "state", "when", "why"), rows))
    return 1 if any(errors) else 0


async def _errors(specs: Sequence[Spec]) -> list[str | None]:
    """Why each engine does not start; None if it does."""
    return [await _error(spec) for spec in specs]


async def _error(spec: Spec) -> str | None:
    engine = spec.factory()()
    try:
        await engine.start()
    except api.EngineDied as error:
        return str(error)
    finally:
        await engine.close()
    return None
