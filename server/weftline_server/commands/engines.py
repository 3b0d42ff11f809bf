"""Which engines a server runs: from the command line or from `[[engine]]` tables to factories."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weftline.errors import InvalidRequest
from weftline_engine.api import Engine
from weftline_engine.models import DEFAULT_MODEL, for_stream, resolve
from weftline_engine.null import LatencyProfile, NullConfig, NullEngine, NullMode

KINDS = ("torch", "vllm", "openai", "null")
DIALECTS = ("chat", "completions", "both")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One engine as its operator describes it: a table of the configuration file, field by field.

    `engine` is its kind and `name` its own; None takes the kind, numbered from the second on.
    `model` is what to load; `served` is the name that an endpoint has for it, None its first.
    `call_it` is the model's name for clients, `cores` are those that an embedded engine computes
    on, all of them where none is named. `connect_key_env` names the
    environment variable that holds the key of `connect`, so that no file has to.
    """

    engine: str = "torch"
    name: str | None = None
    model: str | None = None
    call_it: str | None = None
    dtype: str = "bfloat16"
    device: str = "auto"
    load_format: str = "auto"
    kv_tokens: int | None = None
    kv_fraction: float | None = None
    max_running: int | None = None
    cores: tuple[int, ...] = ()
    tree_attention: bool = True
    connect: str | None = None
    connect_key_env: str = "WEFTLINE_CONNECT_KEY"
    served: str | None = None
    dialect: str = "both"
    extras: bool = False
    context_limit: int | None = None
    engine_python: str | None = None
    tensor_parallel: int = 1
    vllm_arguments: tuple[str, ...] = ()
    null_mode: str = NullMode.ECHO.value
    null_script: str | None = None
    null_fill_s: float = 0.0
    null_step_s: float = 0.0

    def __post_init__(self) -> None:
        for field, allowed in (("engine", KINDS), ("dialect", DIALECTS)):
            if (value := getattr(self, field)) not in allowed:
                raise InvalidRequest(
                    f"{field} {value!r} is none of {', '.join(allowed)}", param=field
                )
        if self.engine == "openai" and self.connect is None:
            raise InvalidRequest(
                "the openai engine needs the address of an endpoint: give --connect URL",
                param="connect",
            )
        if self.engine == "vllm" and (self.connect is None) == (self.engine_python is None):
            raise InvalidRequest(
                "the vllm engine needs an interpreter that has vLLM (--engine-python) or one that "
                "runs already (--connect URL), and not both",
                param="engine_python",
            )


def from_tables(tables: Sequence[Mapping[str, Any]]) -> tuple[EngineSpec, ...]:
    """The `[[engine]]` tables of a configuration file. Raises InvalidRequest."""
    return tuple(_from_table(table) for table in tables)


def _from_table(table: Mapping[str, Any]) -> EngineSpec:
    fields = {field.name: field for field in dataclasses.fields(EngineSpec)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidRequest(f"an engine has no setting {key!r}{hint}", param=key)
        check = _listed if fields[key].default == () else _typed
        values[key] = check(key, value, fields[key])
    return EngineSpec(**values)


def _listed(key: str, value: Any, field: dataclasses.Field[Any]) -> tuple[Any, ...]:
    """`value`, if it is a list of what the field holds."""
    kind = int if field.type == "tuple[int, ...]" else str
    if type(value) is not list or any(type(one) is not kind for one in value):
        raise InvalidRequest(f"{key} should be a list of {kind.__name__}, not {value!r}", param=key)
    return tuple(value)


def _typed(key: str, value: Any, field: dataclasses.Field[Any]) -> Any:
    """`value`, if it has the type of the field's default (text where that is None or text)."""
    numbers = ("kv_tokens", "max_running", "context_limit")
    kind = int if key in numbers else str if field.default is None else type(field.default)
    kind = float if key == "kv_fraction" else kind
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise InvalidRequest(f"{key} should be {kind.__name__}, not {value!r}", param=key)
    return value


def named(args: argparse.Namespace) -> bool:
    """Whether the command line describes an engine, rather than leaving it to a file."""
    return any(value is not None for value in (args.model, args.engine, args.connect))


def from_arguments(args: argparse.Namespace) -> tuple[EngineSpec, ...]:
    """The one engine that the command line describes."""
    names = {field.name for field in dataclasses.fields(EngineSpec)}
    if getattr(args, "engines_on", None) and not named(args):
        return ()  # they come by themselves
    given = {key: value for key, value in vars(args).items() if key in names and value is not None}
    if args.engine == "openai":
        given["served"] = given.pop("model", None)
    given["vllm_arguments"] = tuple(given.get("vllm_arguments", ()))
    return (EngineSpec(**given),)


def without(specs: Sequence[EngineSpec], names: frozenset[str]) -> tuple[EngineSpec, ...]:
    """The engines with those of `names` left out that are an engine's to leave out."""
    if "tree_attention" not in names:
        return tuple(specs)
    return tuple(dataclasses.replace(spec, tree_attention=False) for spec in specs)


def factories(specs: Sequence[EngineSpec]) -> dict[str, Callable[[], Engine]]:
    """What makes each engine, by its name. Downloads models that are not there yet."""
    found: dict[str, Callable[[], Engine]] = {}
    for spec in specs:
        name = spec.name or spec.engine
        number = 1
        while spec.name is None and name in found:
            number += 1
            name = f"{spec.engine}-{number}"
        if name in found:
            raise InvalidRequest(f"two engines are called {name!r}", param="name")
        found[name] = factory(spec)
    return found


def factory(spec: EngineSpec) -> Callable[[], Engine]:
    """What makes this engine, once and again after it has died."""
    return {"torch": _torch, "vllm": _vllm, "openai": _openai, "null": _null}[spec.engine](spec)


def _null(spec: EngineSpec) -> Callable[[], Engine]:
    script = NullConfig.script_from(Path(spec.null_script)) if spec.null_script else ()
    config = NullConfig(
        mode=NullMode(spec.null_mode),
        script=script,
        latency=LatencyProfile(fill_s=spec.null_fill_s, step_s=spec.null_step_s),
        model=spec.call_it or "null",
        max_running=spec.max_running or 1024,
    )
    return lambda: NullEngine(config)


# The other engines are imported where they are made: each needs packages that not all have.


def _torch(spec: EngineSpec) -> Callable[[], Engine]:
    from weftline_engine.embedded.config import EmbeddedConfig
    from weftline_engine.transport.process import ProcessEngine

    try:
        config = EmbeddedConfig(
            model=_weights(spec),
            name=spec.call_it,
            dtype=spec.dtype,
            device=spec.device,
            load_format=spec.load_format,
            kv_tokens=spec.kv_tokens,
            kv_fraction=spec.kv_fraction,
            max_running=spec.max_running or 64,
            cores=spec.cores,
            tree_attention=spec.tree_attention,
        )
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    return lambda: ProcessEngine(config)


def _weights(spec: EngineSpec) -> Path:
    """The model's directory; of a dummy, whose weights are random, one with a config.json."""
    if spec.load_format != "dummy":
        return resolve(spec.model or DEFAULT_MODEL, progress=for_stream())
    directory = Path(spec.model or ".")
    if not (directory / "config.json").is_file():
        raise InvalidRequest(
            f"{directory} holds no config.json, of which a dummy model is made", param="model"
        )
    return directory.absolute()


def _vllm(spec: EngineSpec) -> Callable[[], Engine]:
    from weftline_engine.vllm.config import VLLMConfig
    from weftline_engine.vllm.engine import VLLMEngine

    config = VLLMConfig(
        model=resolve(spec.model or DEFAULT_MODEL, progress=for_stream()),
        python=spec.engine_python,
        connect=_endpoint(spec) if spec.connect else None,
        served=spec.served,
        name=spec.call_it,
        dtype=spec.dtype,
        max_model_len=spec.context_limit,
        max_running=spec.max_running or 64,
        tensor_parallel=spec.tensor_parallel,
        arguments=spec.vllm_arguments,
    )
    return lambda: VLLMEngine(config)


def _openai(spec: EngineSpec) -> Callable[[], Engine]:
    from weftline_engine.openai.engine import Dialect, OpenAIConfig, OpenAIEngine

    config = OpenAIConfig(
        endpoint=_endpoint(spec),
        model=spec.served,
        name=spec.call_it,
        dialect=Dialect(spec.dialect),
        extras=spec.extras,
        context_limit=spec.context_limit,
        max_running=spec.max_running or 64,
    )
    return lambda: OpenAIEngine(config)


def _endpoint(spec: EngineSpec) -> Any:
    from weftline_engine.openai.endpoint import EndpointConfig

    assert spec.connect is not None
    url = spec.connect.rstrip("/")
    if not url.endswith("/v1"):
        url += "/v1"
    try:
        return EndpointConfig(url=url, key=os.environ.get(spec.connect_key_env))
    except ValueError as error:
        raise InvalidRequest(str(error), param="connect") from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line can say of its one engine."""
    parser.add_argument("--engine", choices=KINDS, help="torch (the default) is the embedded one")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"))
    torch = parser.add_argument_group("the embedded engine")
    torch.add_argument("--device", choices=("auto", "cpu", "cuda"), help="auto: a GPU if any")
    torch.add_argument(
        "--load-format",
        choices=("auto", "dummy"),
        help="dummy: random weights for the config.json of the directory MODEL, to benchmark",
    )
    torch.add_argument("--kv-tokens", type=int, help="size of the KV cache")
    torch.add_argument(
        "--kv-fraction",
        type=float,
        help="or its part of the memory that is free once the model is loaded (a GPU: 0.85)",
    )
    parser.add_argument("--call-it", metavar="NAME", help="the model's name for clients")
    parser.add_argument("--max-running", type=int, metavar="N", help="calls on it at once")
    other = parser.add_argument_group("engines behind HTTP: vllm and openai")
    other.add_argument("--connect", metavar="URL", help="an endpoint that runs already")
    other.add_argument(
        "--engine-python", metavar="PATH", help="the interpreter that has vLLM, to start it with"
    )
    other.add_argument("--served", metavar="NAME", help="the endpoint's own name of the model")
    other.add_argument("--dialect", choices=DIALECTS, help="how an openai endpoint is asked")
    other.add_argument(
        "--extras", action="store_true", help="it knows top_k and what else local servers add"
    )
    other.add_argument("--context-limit", type=int, metavar="TOKENS")
    other.add_argument("--tensor-parallel", type=int, metavar="GPUS", help="of one vLLM")
    other.add_argument(
        "--vllm-arguments",
        nargs="*",
        metavar="WORD",
        help="for vLLM's own command line, as they are",
    )
    null = parser.add_argument_group("the null engine, which has no model")
    null.add_argument("--null-mode", choices=tuple(NullMode), default=NullMode.ECHO)
    null.add_argument("--null-script", help='JSON: [{"when": text, "reply": text}, …]')
    null.add_argument("--null-fill-s", type=float, default=0.0, help="seconds a prompt token")
    null.add_argument("--null-step-s", type=float, default=0.0, help="seconds an output token")
