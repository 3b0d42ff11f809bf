"""A hook of mkdocs: http.md is made of the server's OpenAPI document, python.md of docstrings.

`make docs` builds them with the site. They are in no commit.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from typing import Any

import weftline
from weftline.contract import errors
from weftline.contract.sampling import PARAMETERS, Sampling
from weftline.sdk.client import Session
from weftline_server.app import create_app
from weftline_server.config import ServerConfig
from weftline_server.http.openai.message_fields import IGNORED, SERVED
from weftline_server.http.openai.surface import OpenAIRoute, rows

_PYTHON_HEAD = """# The Python client

Every public name of `weftline`. `make docs` makes this page from the docstrings.
[serving.md](serving.md) explains sessions and variables, [steps.md](steps.md) your own functions.
"""


def on_files(files: Any, *, config: Any) -> Any:
    """Called by mkdocs with the files of docs/."""
    from mkdocs.structure.files import File

    for name, text in (("http.md", http()), ("python.md", python())):
        files.append(File.generated(config, name, content=text))
    return files


def http() -> str:
    """The text of http.md."""
    return _page(create_app(ServerConfig(), {}).openapi())


def python() -> str:
    """The text of python.md."""
    parts = [_PYTHON_HEAD]
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
        if thing is Sampling:
            yield ""
            yield from (f"- `{name}`: {one.says}" for name, one in PARAMETERS.items())
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


_HTTP_HEAD = """# The HTTP interface

Every route, field and answer. `make docs` makes this page from the server's own description,
which it serves as `/openapi.json` and shows at `/docs`. [serving.md](serving.md)
explains how the routes work together.

Every route takes the key as `Authorization: Bearer KEY` if the server has keys. Routes that need
none say so. An error has the form of [Error](#error).
"""

_SURFACE = """# Fields of OpenAI, vLLM and SGLang

What becomes of each field of a request. A field that changes what may be answered is served, or
refused with a 400 that names it; null and its default pass. A field that only advises may be
ignored. A cell is empty where no API has the field on that route.
"""
_MESSAGES = """
# Fields of a message

What becomes of each field of a message in a chat, or in the input of a response. Any other one that
is not null, false or empty is a 400 that names it.

| field | | why |
|---|---|---|"""


def _page(document: dict[str, Any]) -> str:
    parts = [_HTTP_HEAD]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts.append("\n".join(_operation(method.upper(), path, operation)))
    parts.append("# Types\n")
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts.append("\n".join(_type(name, schema)))
    parts.append("\n".join(_surface()))
    return "\n".join(parts).rstrip() + "\n"


def _surface() -> Iterator[str]:
    """The table of what becomes of each field of OpenAI's, vLLM's and SGLang's requests."""
    yield _SURFACE
    yield f"| field | {' | '.join(f'`{one}`' for one in OpenAIRoute)} | why |"
    yield f"|---|{'---|' * len(OpenAIRoute)}---|"
    for name, found, says in rows():
        cells = " | ".join("" if one is None else one.value for one in found.values())
        yield f"| `{name}` | {cells} | {says} |"
    yield _MESSAGES
    for name in sorted(SERVED | IGNORED.keys()):
        cell = "served" if name in SERVED else "ignored"
        yield f"| `{name}` | {cell} | {IGNORED.get(name, '')} |"
    yield ""


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"## {method} {path}\n"
    yield f"{operation['description']}\n"
    if "security" not in operation:
        yield "It needs no key.\n"
    if parameters := operation.get("parameters"):
        yield "| parameter | in | meaning |\n|---|---|---|"
        for one in parameters:
            yield f"| `{one['name']}` | {one['in']} | {one['description']} |"
        yield ""
    for content in operation.get("requestBody", {}).get("content", {}).values():
        yield "Request:\n"
        yield _code(content["example"])
        yield from _fields(content["schema"])
    yield "Answer:\n"
    for kind, content in operation["responses"]["200"]["content"].items():
        if "example" in content:
            yield f"`{kind}`\n"
            yield _code(content["example"])
    yield "| status | meaning |\n|---|---|"
    for status, response in operation["responses"].items():
        yield f"| {status} | {response['description']} |"
    yield ""


def _type(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"## {name}\n"
    yield f"{_in_line(schema.get('description', ''))}\n" if "description" in schema else ""
    if "enum" in schema:
        yield "One of " + ", ".join(f"`{value}`" for value in schema["enum"]) + ".\n"
    yield from _fields(schema)


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    if not (fields := schema.get("properties")):
        return
    required = schema.get("required", ())
    yield "| field | type | meaning | example |\n|---|---|---|---|"
    for name, field in fields.items():
        needed = " (required)" if name in required else ""
        example = json.dumps(field["examples"][0], ensure_ascii=False).replace("|", "\\|")
        yield f"| `{name}`{needed} | {_kind(field)} | {field['description']} | `{example}` |"
    yield ""


def _kind(field: dict[str, Any]) -> str:
    """The type of a field in words, with links to the types of this page."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for several in ("allOf", "anyOf", "oneOf"):
        if several in field:
            kinds = [_kind(one) for one in field[several] if one.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    if "const" in field:
        return f"`{field['const']}`"
    return str(field.get("type", "any"))


def _code(example: Any) -> str:
    if isinstance(example, str):
        return f"```\n{example.strip()}\n```\n"
    return f"```json\n{json.dumps(example, indent=2, ensure_ascii=False)}\n```\n"


def _in_line(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines()).strip()
