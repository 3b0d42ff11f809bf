"""The public name of the charts of a session's times."""

from __future__ import annotations

from weftline.sdk.timeline import (
    PHASES,
    Bar,
    bars,
    svg,
    text,
)

__all__ = [
    "PHASES",
    "Bar",
    "bars",
    "svg",
    "text",
]
