"""Reads the configuration file of `weftline serve`: TOML to settings and engine tables."""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from weftline.contract.errors import InvalidRequest
from weftline_server.config import ServerConfig
from weftline_server.observe.cost import Price
from weftline_server.observe.logs import LogFormat

LEVELS = ("debug", "info", "warning")
# Tables of the engines beside those of models.
RETRIEVAL = ("embedder", "function", "reranker", "store")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Settings of the process: its log, and for how many seconds it drains."""

    log_level: str = "warning"
    log_format: str = LogFormat.TEXT.value
    drain_s: float = 10.0

    def __post_init__(self) -> None:
        for name, allowed in (("log_level", LEVELS), ("log_format", tuple(LogFormat))):
            if (value := getattr(self, name)) not in allowed:
                raise InvalidRequest(
                    f"{name} {value!r} is none of {', '.join(allowed)}", param=name
                )
        if not self.drain_s >= 0:
            raise InvalidRequest(f"drain_s must be at least 0, got {self.drain_s}", param="drain_s")


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
    prices = _prices(tables.pop("price", {}))
    given = dict(tables)
    for name, value in flags.items():
        if value is not None:
            _put(given, name, value)
    if keys and "keys" not in given:
        given["keys"] = _keys(keys)
    if prices:
        given["price"] = prices
    of_process = {one.name for one in dataclasses.fields(Process)}
    process = {name: value for name, value in given.items() if name in of_process}
    server = {name: value for name, value in given.items() if name not in of_process}
    made = make(ServerConfig, server, "", {*of_process, "engine", "tool", "mcp", *RETRIEVAL})
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


def _prices(table: Any) -> dict[str, Price]:
    """Return the prices of models by name."""
    if not isinstance(table, dict) or not all(isinstance(one, dict) for one in table.values()):
        raise InvalidRequest('price is a table for each model: [price."MODEL"]', param="price")
    return {
        model: make(Price, {name: _float(value) for name, value in one.items()}, f"price.{model}.")
        for model, one in table.items()
    }


def _float(value: Any) -> Any:
    return float(value) if type(value) is int else value


def make(
    cls: type[Any], values: Mapping[str, Any], where: str, also: set[str] | None = None
) -> Any:
    """Make a dataclass from a table, and nested dataclasses from the tables in it.

    `where` is the table's path for errors; `also` are further names to suggest for a typo.
    """
    hints = get_type_hints(cls)
    made: dict[str, Any] = {}
    for name, value in values.items():
        if name not in hints:
            near = difflib.get_close_matches(name, [*hints, *(also or ())], 1)
            advice = f": did you mean {near[0]}?" if near else ""
            raise InvalidRequest(f"there is no setting {where}{name}{advice}", param=where + name)
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, dict):
                raise InvalidRequest(f"{where}{name} is a table", param=where + name)
            made[name] = make(hint, value, f"{where}{name}.")  # type: ignore[arg-type]
            continue
        if isinstance(value, list):
            value = tuple(value) if get_origin(hint) is tuple else frozenset(value)
        try:
            made[name] = TypeAdapter(hint).validate_python(value, strict=True)
        except ValidationError as error:
            said = error.errors(include_url=False)[0]["msg"]
            raise InvalidRequest(f"{where}{name}: {said}", param=where + name) from None
    return cls(**made)
