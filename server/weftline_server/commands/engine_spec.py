"""An engine as its operator describes it, read from the command line or an `[[engine]]` table."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weftline.contract.errors import InvalidRequest
from weftline_engine.null import NullMode

KINDS = ("torch", "vllm", "openai", "null")
DIALECTS = ("chat", "completions", "both")
ENDPOINT_SCHEDULERS = ("none", "vllm", "sglang", "dynamo")
SCHEDULERS = ("auto", "weftline", "vllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedSpec:
    """What only the embedded engine has. `cores` are its CPU cores; empty means all."""

    device: str = "auto"
    load_format: str = "auto"
    quantize: str = "none"
    kv_fraction: float | None = None
    host_kv_tokens: int = 0
    cores: tuple[int, ...] = ()
    tree_attention: bool = True
    drafting: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSpec:
    """An endpoint that runs already, and how to talk to it. Raises InvalidRequest.

    `served` is its name of the model; None takes its first. `connect_key_env` names the environment
    variable that holds the key of `connect`, so that no file has to hold it.
    """

    connect: str | None = None
    connect_key_env: str = "WEFTLINE_CONNECT_KEY"
    served: str | None = None
    dialect: str = "both"
    extras: bool = False
    endpoint_scheduler: str = ENDPOINT_SCHEDULERS[0]
    context_limit: int | None = None

    def __post_init__(self) -> None:
        _one_of("dialect", self.dialect, DIALECTS)
        _one_of("endpoint_scheduler", self.endpoint_scheduler, ENDPOINT_SCHEDULERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMSpec:
    """A vLLM that is started. Raises InvalidRequest."""

    engine_python: str | None = None
    tensor_parallel: int = 1
    vllm_scheduler: str = SCHEDULERS[0]
    vllm_arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _one_of("vllm_scheduler", self.vllm_scheduler, SCHEDULERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class NullSpec:
    """What only the null engine has."""

    null_mode: str = NullMode.ECHO.value
    null_script: str | None = None
    null_fill_s: float = 0.0
    null_step_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One engine. Raises InvalidRequest.

    `engine` is the kind of engine. `name` is its own name; None takes the kind, numbered from the
    second on. `model` is the model to load. `call_it` is the model's name for clients. An
    `[[engine]]` table is flat: the settings of the parts stand beside these.
    """

    engine: str = "torch"
    name: str | None = None
    model: str | None = None
    call_it: str | None = None
    dtype: str = "bfloat16"
    kv_tokens: int | None = None
    max_running: int | None = None
    embedded: EmbeddedSpec = field(default_factory=EmbeddedSpec)
    endpoint: EndpointSpec = field(default_factory=EndpointSpec)
    vllm: VLLMSpec = field(default_factory=VLLMSpec)
    null: NullSpec = field(default_factory=NullSpec)

    def __post_init__(self) -> None:
        _one_of("engine", self.engine, KINDS)
        connect = self.endpoint.connect
        if self.engine == "openai" and connect is None:
            raise InvalidRequest(
                "the openai engine needs the address of an endpoint: give --connect URL",
                param="connect",
            )
        if self.engine == "vllm" and (connect is None) == (self.vllm.engine_python is None):
            raise InvalidRequest(
                "the vllm engine needs an interpreter that has vLLM (--engine-python PATH) or a "
                "running vLLM (--connect URL), and not both",
                param="engine_python",
            )

    @staticmethod
    def of(**settings: Any) -> EngineSpec:
        """The engine of these settings, which are those of a table. Raises InvalidRequest."""
        given: dict[str, dict[str, Any]] = {}
        for name, value in settings.items():
            given.setdefault(_PART_OF.get(name, ""), {})[name] = value
        own = given.pop("", {})
        return EngineSpec(**own, **{part: _PARTS[part](**its) for part, its in given.items()})

    def settings(self) -> dict[str, Any]:
        """The settings as a table has them, without those that are None."""
        flat = dataclasses.asdict(self)
        for part in _PARTS:
            flat |= flat.pop(part)
        return {name: value for name, value in flat.items() if value is not None}


_PARTS: Mapping[str, type] = {
    "embedded": EmbeddedSpec,
    "endpoint": EndpointSpec,
    "vllm": VLLMSpec,
    "null": NullSpec,
}
_PART_OF = {one.name: part for part, cls in _PARTS.items() for one in dataclasses.fields(cls)}
_FIELDS: Mapping[str, dataclasses.Field[Any]] = {
    one.name: one
    for cls in (EngineSpec, *_PARTS.values())
    for one in dataclasses.fields(cls)
    if one.name not in _PARTS
}


def from_tables(tables: Sequence[Mapping[str, Any]]) -> tuple[EngineSpec, ...]:
    """Return the engines of `[[engine]]` tables. Raises InvalidRequest."""
    return tuple(_from_table(table) for table in tables)


def _from_table(table: Mapping[str, Any]) -> EngineSpec:
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in _FIELDS:
            near = difflib.get_close_matches(key, _FIELDS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidRequest(f"an engine has no setting {key!r}{hint}", param=key)
        check = _listed if _FIELDS[key].default == () else _typed
        values[key] = check(key, value, _FIELDS[key])
    return EngineSpec.of(**values)


def _one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InvalidRequest(f"{name} {value!r} is none of {', '.join(allowed)}", param=name)


def _listed(key: str, value: Any, field: dataclasses.Field[Any]) -> tuple[Any, ...]:
    """Return `value` as a tuple. Raises InvalidRequest unless it is a list of the field's type."""
    kind = int if field.type == "tuple[int, ...]" else str
    if type(value) is not list or any(type(one) is not kind for one in value):
        raise InvalidRequest(f"{key} should be a list of {kind.__name__}, not {value!r}", param=key)
    return tuple(value)


def _typed(key: str, value: Any, field: dataclasses.Field[Any]) -> Any:
    """Return `value`. Raises InvalidRequest unless it has the field's type."""
    numbers = ("kv_tokens", "max_running", "context_limit")
    kind = int if key in numbers else str if field.default is None else type(field.default)
    kind = float if key == "kv_fraction" else kind
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise InvalidRequest(f"{key} should be {kind.__name__}, not {value!r}", param=key)
    return value


def named(args: argparse.Namespace) -> bool:
    """Return whether the command line describes an engine."""
    return any(value is not None for value in (args.model, args.engine, args.connect))


def from_arguments(args: argparse.Namespace) -> tuple[EngineSpec, ...]:
    """Return the engine that the command line describes, or none if engines only join."""
    if getattr(args, "engines_on", None) and not named(args):
        return ()
    said = {key: value for key, value in vars(args).items() if value is not None}
    given = {key: value for key, value in said.items() if key in _FIELDS}
    if args.engine == "openai":
        given["served"] = given.pop("model", None)
    given["vllm_arguments"] = _words(given.get("vllm_arguments", ()))
    return (EngineSpec.of(**given),)


def _words(given: Sequence[str]) -> tuple[str, ...]:
    """The words for vLLM's command line. A word that begins with a dash is taken for one of our own
    options, so `--vllm-arguments="--block-size 32"` may give all of them as one text."""
    if len(given) == 1 and given[0].startswith("-"):
        return tuple(shlex.split(given[0]))
    return tuple(given)


def without(specs: Sequence[EngineSpec], names: frozenset[str]) -> tuple[EngineSpec, ...]:
    """Return `specs` with those optimisations of `names` off that engines implement."""
    return tuple(
        dataclasses.replace(
            spec,
            embedded=dataclasses.replace(
                spec.embedded,
                tree_attention=spec.embedded.tree_attention and "tree_attention" not in names,
                drafting=spec.embedded.drafting and "drafting" not in names,
            ),
        )
        for spec in specs
    )
