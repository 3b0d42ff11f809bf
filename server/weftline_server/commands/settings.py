"""Reads the configuration file of `weftline serve`: TOML to settings and engine tables."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from weftline.contract.errors import InvalidRequest
from weftline_server.config import ServerConfig
from weftline_server.observe.logs import LogFormat

T = TypeVar("T")
LogLevel = Literal["debug", "info", "warning"]
MOST_SERVERS = 64  # of one machine
# Tables of the engines beside those of models.
RETRIEVAL = ("embedder", "function", "reranker", "store")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Settings of the process: its log, for how many seconds it drains, and how many servers it
    runs.
    """

    log_level: LogLevel = "warning"
    log_format: LogFormat = LogFormat.TEXT
    drain_s: Annotated[float, Field(ge=0)] = 10.0
    servers: Annotated[int, Field(ge=1, le=MOST_SERVERS)] = 1


@dataclass(frozen=True, slots=True)
class Settings:
    """The combined settings of the file and the flags."""

    server: ServerConfig
    process: Process
    engines: tuple[Mapping[str, Any], ...] = field(default=())
    retrieval: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    tools: tuple[Mapping[str, Any], ...] = field(default=())
    mcp: tuple[Mapping[str, Any], ...] = field(default=())


def load(path: Path | None, flags: Mapping[str, Any]) -> Settings:
    """Return the file's settings, with `flags` taking precedence. A flag of None was not given.

    A flag may be a setting of a table: its name is then the path, with dots. Raises InvalidRequest
    for a file that cannot be read, an unknown name or a wrong type.
    """
    tables = {} if path is None else _read(path)
    engines = _listed(tables, "engine")
    retrieval = {kind: _listed(tables, kind) for kind in RETRIEVAL if kind in tables}
    tools, mcp = _listed(tables, "tool"), _listed(tables, "mcp")
    keys = tables.pop("keys", {})
    given = dict(tables)
    for name, value in flags.items():
        if value is not None:
            _put(given, name, value)
    if keys and "keys" not in given:
        given["keys"] = _keys(keys)
    of_process = {one.name for one in dataclasses.fields(Process)}
    process = {name: value for name, value in given.items() if name in of_process}
    server = {name: value for name, value in given.items() if name not in of_process}
    others = {*of_process, "engine", "tool", "mcp", *RETRIEVAL}
    made = make(ServerConfig, server, "", also=others)
    return Settings(made, make(Process, process, ""), engines, retrieval, tools, mcp)


def key_of(path: Path | None) -> str | None:
    """The API key in a file. Raises InvalidRequest if it holds none, or more than a key."""
    if path is None:
        return None
    try:
        words = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read {path}: {error}", param="api_key_file") from error
    if len(words) != 1:
        raise InvalidRequest(
            f"{path} must hold one key and nothing else; several tenants have their keys in the "
            "[keys] table of --config",
            param="api_key_file",
        )
    return words[0]


def _put(tables: dict[str, Any], path: str, value: Any) -> None:
    """Set one setting; `path` names its tables, which stay as they are otherwise."""
    name, _, rest = path.partition(".")
    if not rest:
        tables[name] = value
        return
    inner = tables.get(name, {})
    if not isinstance(inner, dict):
        raise InvalidRequest(f"{name} is a table", param=name)
    tables[name] = dict(inner)
    _put(tables[name], rest, value)


def _listed(tables: dict[str, Any], kind: str) -> tuple[Mapping[str, Any], ...]:
    """Take the `[[kind]]` tables out of `tables`. Raises InvalidRequest for anything else."""
    found = tables.pop(kind, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise InvalidRequest(f"{kind} is a list of tables: write [[{kind}]]", param=kind)
    return tuple(found)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror}", param="config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} is not TOML: {error}", param="config") from error


def _keys(table: Any) -> dict[str, str]:
    """Return tenants by key. A value `$NAME` is the key in that environment variable."""
    found: dict[str, str] = {}
    for tenant, key in table.items() if isinstance(table, dict) else ():
        if isinstance(key, str) and key.startswith("$"):
            key = os.environ.get(key[1:])
        if not isinstance(key, str) or not key:
            raise InvalidRequest(
                f"keys.{tenant} is neither a key nor the $NAME of a set variable", param="keys"
            )
        if key in found:
            raise InvalidRequest(f"{tenant} and {found[key]} have the same key", param="keys")
        found[key] = tenant
    return found


def make(
    cls: type[T],
    values: Mapping[str, Any],
    where: str,
    *,
    also: Collection[str] = (),
    flat: Collection[str] = (),
) -> T:
    """Make a dataclass of a table, and nested dataclasses of the tables in it.

    `where` is the table's path for errors; `also` are further names to suggest for a typo. The
    tables named in `flat` are none for the user, and stand in no path. Raises InvalidRequest.
    """
    one: Any = tuple[cls]  # type: ignore[valid-type]
    adapter: TypeAdapter[tuple[T]] = TypeAdapter(one, config=_CLOSED)
    try:
        # As JSON a list may become a tuple and a table a dataclass, and no text becomes a number.
        return adapter.validate_json(json.dumps([values], default=str), strict=True)[0]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    path = where + ".".join(str(one) for one in first["loc"][1:] if one not in flat)
    match first["type"]:
        case "unexpected_keyword_argument":
            near = difflib.get_close_matches(str(first["loc"][-1]), [*_names(cls), *also], 1)
            said = f"there is no setting {path}" + (f": did you mean {near[0]}?" if near else "")
        case "missing":
            said = f"{path} is missing"
        case "dataclass_type" | "dict_type":
            said = f"{path} is a table"
        case _:
            said = f"{path}: {first['msg']}, not {first['input']!r:.80}"
    raise InvalidRequest(said, param=path)


_CLOSED = ConfigDict(extra="forbid")  # the nested dataclasses inherit it


def _names(cls: type[Any]) -> Iterator[str]:
    """The names of all settings, those of nested tables too."""
    for name, hint in get_type_hints(cls).items():
        yield name
        if dataclasses.is_dataclass(hint):
            yield from _names(hint)  # type: ignore[arg-type]
