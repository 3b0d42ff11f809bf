"""The metrics that engines measure themselves, under the engines' own names for dashboards."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from weftline_server.runtime.service import EngineStatus


async def gather(engines: Sequence[EngineStatus]) -> bytes:
    """The metrics of every engine that has its own and answers, as one text."""
    asked = {engine.name: engine.metrics for engine in engines if engine.metrics is not None}
    texts = await asyncio.gather(*(engine.metrics() for engine in asked.values()))
    return merge({name: text for name, text in zip(asked, texts, strict=True) if text})


def merge(texts: Mapping[str, bytes]) -> bytes:
    """The engines' `texts`, by engine's name, as one text in Prometheus's format.

    The text of a single engine stays as it is. With several engines each family appears once, and a
    label `weftline_engine` tells the samples apart: Prometheus refuses duplicates of either.
    """
    if len(texts) < 2:
        return b"".join(texts.values())
    families: dict[str, tuple[list[str], list[str]]] = {}
    for engine, text in texts.items():
        heads: list[str] = []
        samples: list[str] = []
        for line in text.decode(errors="replace").splitlines():
            if line.startswith("# "):
                family = line.split(" ", 3)[2]
                heads, samples = families.setdefault(family, ([], []))
                kind = line.split(" ", 2)[1]
                if not any(head.split(" ", 2)[1] == kind for head in heads):
                    heads.append(line)
            elif line:
                samples.append(_labelled(line, engine))
    lines = [line for heads, samples in families.values() for line in (*heads, *samples)]
    return ("\n".join(lines) + "\n").encode()


def _labelled(sample: str, engine: str) -> str:
    """The line `sample` with the label `weftline_engine`, which comes first."""
    name = engine.replace("\\", "\\\\").replace('"', '\\"')
    label = f'weftline_engine="{name}"'
    before, brace, rest = sample.partition("{")
    if brace and " " not in before:
        return f"{before}{{{label},{rest}"
    before, _, value = sample.partition(" ")
    return f"{before}{{{label}}} {value}"
