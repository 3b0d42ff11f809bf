"""The pages /ui (sessions while they run) and /docs (routes): static files, with a strict CSP."""

from __future__ import annotations

from importlib.resources import files
from types import MappingProxyType

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

router = APIRouter(prefix="/ui", include_in_schema=False)
docs = APIRouter(prefix="/docs", include_in_schema=False)

TYPES = MappingProxyType({"html": "text/html", "css": "text/css", "js": "text/javascript"})
HEADERS = MappingProxyType(
    {
        # Nothing but this server's own files and routes, and nothing inline: no value can become
        # a script.
        "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
)


def _read() -> dict[str, tuple[bytes, str]]:
    folder = files("weftline_server") / "ui"
    return {
        file.name: (file.read_bytes(), TYPES[file.name.rpartition(".")[2]])
        for file in folder.iterdir()
        if file.name.rpartition(".")[2] in TYPES
    }


_FILES = _read()


@router.get("")
async def without_slash() -> Response:
    """The page's files have relative addresses, so its own address ends with a slash."""
    return RedirectResponse("ui/")


@router.get("/")
async def index() -> Response:
    return await file("index.html")


@docs.get("")
async def docs_without_slash() -> Response:
    return RedirectResponse("docs/")


@docs.get("/")
async def docs_index() -> Response:
    return await file("docs.html")


@docs.get("/{name}")
@router.get("/{name}")
async def file(name: str) -> Response:
    """One file of the page. Data is not in it: the page asks the API with the user's key."""
    found = _FILES.get(name)
    if found is None:
        raise HTTPException(404, f"the page has no file {name[:64]!r}")
    content, kind = found
    return Response(content, media_type=kind, headers=dict(HEADERS))
