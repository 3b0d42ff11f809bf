"""The routes of other servers that clients ask for, and what to ask this server for instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from starlette.routing import BaseRoute, Route

_CHAT, _TEXT = "use POST /v1/chat/completions", "use POST /v1/completions"
_EMBEDDINGS, _MODELS = "use POST /v1/embeddings", "use GET /v1/models"
_TEXT_ONLY = "only text is read and written: send it to POST /v1/chat/completions"
_NO_FILES = "no file is kept: send its text to POST /v1/chat/completions"
_NO_JOBS = "each request is answered at once: send them to POST /v1/chat/completions"
_NO_TRAINING = "models are served and not trained: GET /v1/models lists them"
_STATE = "use GET /v1/engines"

# By the beginning of a path, in whole parts of it. The longest one counts. One that ends with a
# slash has only the paths below it. No row may be of a route of ours: the guard passes these paths.
_INSTEAD: Mapping[str, str] = MappingProxyType({
    # OpenAI
    "/v1/audio": _TEXT_ONLY,
    "/v1/images": _TEXT_ONLY,
    "/v1/videos": _TEXT_ONLY,
    "/v1/realtime": _TEXT_ONLY,
    "/v1/moderations": _CHAT,
    "/v1/assistants": _CHAT,
    "/v1/threads": _CHAT,
    "/v1/batches": _NO_JOBS,
    "/v1/files": _NO_FILES,
    "/v1/uploads": _NO_FILES,
    "/v1/containers": _NO_FILES,
    "/v1/vector_stores": _EMBEDDINGS,
    "/v1/fine_tuning": _NO_TRAINING,
    "/openai": _CHAT,  # Azure's
    # Anthropic and Google
    "/v1/messages/batches": "each request is answered at once: send them to POST /v1/messages",
    "/v1/complete": _TEXT,
    "/v1beta": _CHAT,
    # Ollama
    "/api": _CHAT,
    "/api/generate": _TEXT,
    "/api/embed": _EMBEDDINGS,
    "/api/embeddings": _EMBEDDINGS,
    "/api/tags": _MODELS,
    "/api/show": _MODELS,
    "/api/pull": _MODELS,
    "/api/ps": _STATE,
    "/api/version": "use GET /version",
    # llama.cpp, TGI, TEI, SGLang and vLLM
    "/completion": _TEXT,
    "/infill": _TEXT,
    "/generate": _TEXT,
    "/generate_stream": _TEXT,
    "/inference/v1/generate": _TEXT,
    "/embed": _EMBEDDINGS,
    "/embedding": _EMBEDDINGS,
    "/encode": _EMBEDDINGS,
    "/pooling": _EMBEDDINGS,
    "/v2/embed": _EMBEDDINGS,
    "/classify": _CHAT,
    "/invocations": _CHAT,
    "/apply-template": "use POST /tokenize",
    "/info": _MODELS,
    "/props": _MODELS,
    "/get_model_info": _MODELS,
    "/slots": _STATE,
    "/load": "use GET /metrics",
})  # fmt: skip
_BASE = "/v1"


def wrong_path(path: str, routes: Iterable[BaseRoute]) -> str:
    """What is wrong with a path that no route has, and what to ask instead."""
    says = instead_of(path)
    if says is None:
        found = next((one for one in _moved(path) if _methods(one, routes)), None)
        says = "GET /docs lists the routes" if found is None else f"use {found}"
        if found is not None and found.startswith(_BASE + "/"):
            says += ", with a base URL that ends with /v1"
    return f"there is no route {path[:100]!r}: {says}"


def wrong_method(method: str, path: str, routes: Iterable[BaseRoute]) -> tuple[str, str]:
    """What is wrong with a request whose path has a route, and the methods of the path."""
    methods = ", ".join(sorted(_methods(path, routes)))
    return f"{path[:100]!r} takes no {method[:20]}: use {methods}", methods


def instead_of(path: str) -> str | None:
    """What to do instead of asking for a route of another server; None for an unknown path."""
    at = path.rstrip("/")
    below = False
    while at:
        found = _INSTEAD.get(at) or (_INSTEAD.get(f"{at}/") if below else None)
        if found is not None:
            return found
        at, below = at.rpartition("/")[0], True
    return None


def _moved(path: str) -> Iterable[str]:
    """The path where the base URL lacks /v1, or has it twice."""
    path = path.rstrip("/")
    yield path
    yield f"{_BASE}{path}"
    yield path.removeprefix(_BASE)
    yield path.replace(f"{_BASE}{_BASE}", _BASE)


def _methods(path: str, routes: Iterable[BaseRoute]) -> set[str]:
    """The methods of the routes with this path."""
    found: set[str] = set()
    for route in routes:
        if isinstance(route, Route) and route.path_regex.match(path):
            found |= route.methods or set()
    return found - {"HEAD"}
