"""The Python SDK of weftline: semantic functions, and the clients that run them as one graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weftline.contract.protocol import Criterion, Sampling
    from weftline.sdk.aclient import AsyncClient
    from weftline.sdk.client import Client
    from weftline.sdk.client_steps import client_step
    from weftline.sdk.function import Input, Output, semantic_function

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
    "AsyncClient": "weftline.sdk.aclient",
    "Client": "weftline.sdk.client",
    "Criterion": "weftline.contract.protocol",
    "Input": "weftline.sdk.function",
    "Output": "weftline.sdk.function",
    "Sampling": "weftline.contract.protocol",
    "client_step": "weftline.sdk.client_steps",
    "semantic_function": "weftline.sdk.function",
}


def __dir__() -> list[str]:
    return [*globals(), *_HOME]


def __getattr__(name: str) -> Any:
    # Lazy, because the server's session imports weftline.contract where httpx2 is not installed.
    if name not in _HOME:
        raise AttributeError(f"module 'weftline' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
