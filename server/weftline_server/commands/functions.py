"""`weftline doctor --config`: starts each function of a configuration file once.

A function runs in a process of its own, with the settings of its table. The exit code is 1 if one
does not start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from weftline_engine import api
from weftline_server.commands.retrieval import FunctionSpec, from_tables
from weftline_server.commands.settings import load
from weftline_server.commands.tables import aligned


def run(path: str) -> int:
    """Start the functions, and print what became of each. Raises InvalidRequest."""
    settings = load(Path(path), {})
    specs = from_tables({"function": settings.retrieval.get("function", ())})
    functions = [spec for spec in specs if isinstance(spec, FunctionSpec)]
    if not functions:
        print(f"{path} has no [[function]]")
        return 0
    errors = asyncio.run(_errors(functions))
    rows = [
        (spec.name, "starts" if error is None else "does not start", error or "")
        for spec, error in zip(functions, errors, strict=True)
    ]
    print(aligned(("function", "state", "why"), rows))
    return 1 if any(errors) else 0


async def _errors(specs: Sequence[FunctionSpec]) -> list[str | None]:
    """Why each function does not start; None if it does."""
    return [await _error(spec) for spec in specs]


async def _error(spec: FunctionSpec) -> str | None:
    engine = spec.factory()()
    try:
        await engine.start()
    except api.EngineDied as error:
        return str(error)
    finally:
        await engine.close()
    return None
