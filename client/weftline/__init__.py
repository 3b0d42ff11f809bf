"""The Python SDK of weftline: semantic functions, and the clients that run them as one graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weftline.aclient import AsyncClient
    from weftline.client import Client
    from weftline.client_function import client_step
    from weftline.function import Input, Output, semantic_function
    from weftline.protocol import Criterion, Sampling

__all__ = [
    "AsyncClient",
    "Client",
    "Criterion",
    "Input",
    "Output",
    "Sampling",
    "client_step",
    "semantic_function",
]

_HOME = {
    "AsyncClient": "weftline.aclient",
    "Client": "weftline.client",
    "Criterion": "weftline.protocol",
    "Input": "weftline.function",
    "Output": "weftline.function",
    "Sampling": "weftline.protocol",
    "client_step": "weftline.client_function",
    "semantic_function": "weftline.function",
}


def __dir__() -> list[str]:
    return [*globals(), *_HOME]


def __getattr__(name: str) -> Any:
    # Lazy, because the server's session imports weftline.protocol where httpx is not installed.
    if name not in _HOME:
        raise AttributeError(f"module 'weftline' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
