"""Writes docs/http.md from the server's OpenAPI document, and docs/python.md from the docstrings.

`python docs/reference.py` writes both. tests/null/test_reference.py compares them with the code.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import weftline
from weftline.contract import errors
from weftline.sdk.client import Session
from weftline_server.app import create_app
from weftline_server.config import ServerConfig
from weftline_server.http.reference import markdown

HERE = Path(__file__).parent

_HEAD = """# The Python client

Every public name of `weftline`. `python docs/reference.py` writes this page from the docstrings.
[serving.md](serving.md) explains sessions and variables, [steps.md](steps.md) your own functions.
"""


def http() -> str:
    """The text of docs/http.md."""
    return markdown.page(create_app(ServerConfig(), {}).openapi())


def python() -> str:
    """The text of docs/python.md."""
    parts = [_HEAD]
    for name in sorted(weftline.__all__):
        parts += _object(name, getattr(weftline, name))
    parts += _object("Session", Session)
    parts += ["\n## Errors\n", "All are in `weftline.errors`.\n", "| error | status | meaning |"]
    parts.append("|---|---|---|")
    for name, error in sorted(errors._BY_NAME.items()):
        first = (inspect.getdoc(error) or "").partition("\n\n")[0].replace("\n", " ")
        parts.append(f"| `{name}` | {int(error.status)} | {first} |")
    return "\n".join(parts) + "\n"


def _object(name: str, thing: Any) -> Iterator[str]:
    yield f"\n## {name}\n"
    if inspect.isclass(thing):
        yield inspect.getdoc(thing) or ""
        for member, value in inspect.getmembers(thing):
            if not member.startswith("_") and member in _own(thing):
                yield from _member(member, value)
        return
    yield f"`{name}{_signature(thing)}`\n"
    yield inspect.getdoc(thing) or ""


def _own(thing: type) -> set[str]:
    """The names that classes of ours define, not those of the classes below."""
    ours = [one for one in thing.__mro__ if one.__module__.startswith("weftline")]
    return {name for one in ours for name in vars(one)}


def _member(name: str, value: Any) -> Iterator[str]:
    if callable(value):
        yield f"\n### `{name}{_signature(value)}`\n"
    elif isinstance(value, property):
        yield f"\n### `{name}`\n"
    else:
        return
    yield inspect.getdoc(value) or ""


def _signature(thing: Any) -> str:
    """The parameters as they are written, without the modules of their types."""
    try:
        return str(inspect.signature(thing)).replace("'", "")
    except ValueError:
        return "(…)"


if __name__ == "__main__":
    (HERE / "http.md").write_text(http(), encoding="utf-8")
    (HERE / "python.md").write_text(python(), encoding="utf-8")
