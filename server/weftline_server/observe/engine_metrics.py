"""Engines' own metrics, passed on under their own names so that existing dashboards read them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from weftline_engine.api import HasMetrics
from weftline_server.schedule.engines.slot import EngineState, Slot


async def gather(slots: Sequence[Slot]) -> bytes:
    """The metrics of every engine that has some and answers, as one text."""
    asked: dict[str, HasMetrics] = {}
    for slot in slots:
        engine = slot.engine
        if slot.state is not EngineState.DOWN and isinstance(engine, HasMetrics):
            asked[slot.name] = engine
    texts = await asyncio.gather(*(engine.metrics() for engine in asked.values()))
    return merge({name: text for name, text in zip(asked, texts, strict=True) if text})


def merge(texts: Mapping[str, bytes]) -> bytes:
    """One engine's text as it is; of several, each family once, its samples told apart by a label
    `weftline_engine`, for Prometheus refuses a family or a sample that comes twice."""
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
    name = engine.replace("\\", "\\\\").replace('"', '\\"')
    label = f'weftline_engine="{name}"'
    before, brace, rest = sample.partition("{")
    if brace and " " not in before:
        return f"{before}{{{label},{rest}"
    before, _, value = sample.partition(" ")
    return f"{before}{{{label}}} {value}"
