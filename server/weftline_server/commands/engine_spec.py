"""An engine as its operator describes it, read from the command line or an `[[engine]]` table."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from weftline.contract.errors import InvalidRequest
from weftline_engine.api.engine_option import (
    ALL,
    CONNECTS,
    LLAMA,
    NULL,
    TORCH,
    VLLM,
    EngineSetting,
    setting,
    setting_of,
)
from weftline_engine.own.embedded.config import EmbeddedSettings
from weftline_engine.pretend.null_settings import NullSettings
from weftline_engine.remote.llamacpp.llama_settings import LlamaSettings
from weftline_engine.remote.openai.endpoint_settings import EndpointSettings, OpenAISettings
from weftline_engine.remote.vllm.vllm_settings import VLLMSettings
from weftline_server.commands.option_takers import refuse_others
from weftline_server.commands.settings import make

EngineName = Literal["torch", "vllm", "sglang", "llamacpp", "openai", "null"]


def _check_dtype(dtype: str) -> None:
    """Raise InvalidRequest for a type that releases before had."""
    if dtype == "int8":
        raise InvalidRequest(
            'dtype int8 is gone: use --quantize q8_0 (quantize = "q8_0" in a file), which is as '
            "small and stays nearer to bfloat16",
            param="dtype",
        )


def _dtype(text: str) -> str:
    """A type on the command line. Raises ArgumentTypeError for one that is gone."""
    try:
        _check_dtype(text)
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(error.message) from None
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One engine. Raises InvalidRequest.

    `engine` is the kind of engine. `name` is its own name; None takes the kind, numbered from the
    second on. `model` is the model to load. `call_it` is the model's name for clients. An
    `[[engine]]` table is flat: the settings of the parts, which belong to the engines, stand beside
    these, which several engines have.
    """

    engine: EngineName = setting(
        "torch",
        ALL,
        "kind of engine; torch is the embedded one (default: torch; vllm on a machine with a GPU "
        "that has vLLM, unless the model is a GGUF file or an option is torch's)",
        choices=get_args(EngineName),
    )
    name: str | None = setting(None, ALL)
    model: str | None = setting(None, tuple(one for one in ALL if one != "null"))
    call_it: str | None = setting(
        None, ALL, "the model's name for clients (default: its own name)", metavar="NAME"
    )
    dtype: str = setting(
        "bfloat16",
        (*TORCH, *VLLM),
        "type of weights, activations and KV cache (default: bfloat16)",
        choices=("bfloat16", "float32"),
        type=_dtype,
    )
    kv_tokens: int | None = setting(
        None,
        (*TORCH, *LLAMA, *NULL),
        "size of the KV cache in tokens (default: see --kv-fraction)",
        metavar="TOKENS",
        type=int,
    )
    max_running: int | None = setting(
        None,
        tuple(one for one in ALL if one != f"llamacpp{CONNECTS}"),
        "most calls that the engine runs at once (default: 64; null engine: 1024; llamacpp: 8, one "
        "in each slot)",
        metavar="CALLS",
        type=int,
    )
    embedded: EmbeddedSettings = field(default_factory=EmbeddedSettings)
    endpoint: EndpointSettings = field(default_factory=EndpointSettings)
    openai: OpenAISettings = field(default_factory=OpenAISettings)
    vllm: VLLMSettings = field(default_factory=VLLMSettings)
    llama: LlamaSettings = field(default_factory=LlamaSettings)
    null: NullSettings = field(default_factory=NullSettings)

    def __post_init__(self) -> None:
        _check_dtype(self.dtype)
        connect = self.endpoint.connect
        if self.engine == "openai" and connect is None:
            raise InvalidRequest(
                "the openai engine needs the address of an endpoint: give --connect URL",
                param="connect",
            )
        if self.engine == "sglang" and connect is None:
            raise InvalidRequest(
                "the sglang engine needs the address of a running SGLang: give --connect URL",
                param="connect",
            )
        if self.engine == "vllm" and (connect is None) == (self.vllm.engine_python is None):
            raise InvalidRequest(
                "the vllm engine needs an interpreter that has vLLM (--engine-python PATH) or a "
                "running vLLM (--connect URL), and not both",
                param="engine_python",
            )
        self._check_ranks()
        if self.engine == "llamacpp" and connect and self.llama.llama_server:
            raise InvalidRequest(
                "the llamacpp engine starts a llama-server (--llama-server PATH) or takes a "
                "running one (--connect URL), and not both",
                param="llama_server",
            )

    def _check_ranks(self) -> None:
        """Refuse data-parallel ranks where the server could not choose among them."""
        rank = self.endpoint.data_parallel_rank
        if rank is not None and (self.engine != "vllm" or not self.endpoint.connect or rank < 0):
            raise InvalidRequest(
                "data_parallel_rank is a rank of a running vLLM, counted from 0: give --engine "
                "vllm and --connect URL",
                param="data_parallel_rank",
            )
        if any(word.startswith("--data-parallel-size") for word in self.vllm.vllm_arguments):
            raise InvalidRequest(
                "weftline starts a vLLM of one data-parallel rank: start vLLM yourself, and "
                "describe each rank as an [[engine]] with connect and data_parallel_rank",
                param="vllm_arguments",
            )

    @property
    def takes_default(self) -> bool:
        """Whether this is the embedded engine with the default model."""
        return self.engine == "torch" and self.model is None

    @property
    def starts(self) -> bool:
        """Whether a process of its own starts for it, which has a model. Several servers share it;
        what connects to an endpoint, or has no model, is in each server.
        """
        return self.engine != "null" and self.endpoint.connect is None

    @property
    def taker(self) -> str:
        """The engine as the options know it: one that is started takes others than one that runs
        already."""
        both = self.engine in ("vllm", "llamacpp")
        return self.engine + CONNECTS if both and self.endpoint.connect else self.engine

    @staticmethod
    def of(**settings: Any) -> EngineSpec:
        """The engine of these settings, which are those of a table. Raises InvalidRequest."""
        return _engine_of(settings, {name: f"engine.{name}" for name in _NAMES})

    def settings(self) -> dict[str, Any]:
        """The settings as a table has them, without those that are None or not this engine's."""
        flat = dataclasses.asdict(self)
        for part in _PARTS:
            flat |= flat.pop(part)
        return {
            name: value
            for name, value in flat.items()
            if value is not None and self.taker in ENGINE_TAKERS[name]
        }


_PARTS: Mapping[str, type] = {
    "embedded": EmbeddedSettings,
    "endpoint": EndpointSettings,
    "openai": OpenAISettings,
    "vllm": VLLMSettings,
    "llama": LlamaSettings,
    "null": NullSettings,
}
_PART_OF = {one.name: part for part, cls in _PARTS.items() for one in dataclasses.fields(cls)}
_SETTINGS: Mapping[str, EngineSetting] = {
    one.name: setting_of(one)
    for cls in (EngineSpec, *_PARTS.values())
    for one in dataclasses.fields(cls)
    if one.name not in _PARTS
}
# By the setting of an `[[engine]]` table.
ENGINE_TAKERS = {name: one.takers for name, one in _SETTINGS.items()}
_NAMES = {one.name for one in dataclasses.fields(EngineSpec)} - _PARTS.keys() | _PART_OF.keys()
_FLAGS = {name: "MODEL" if name == "model" else f"--{name.replace('_', '-')}" for name in _NAMES}


_BEHIND_HTTP = "engines behind HTTP: vllm, sglang, llamacpp and openai"
_GROUPS = {
    "embedded": "the embedded engine",
    **dict.fromkeys(("endpoint", "openai", "vllm", "llama"), _BEHIND_HTTP),
    "null": "the null engine, which has no model",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that describe one engine. A setting without help is for files alone."""
    titles = dict.fromkeys(_GROUPS.values())
    groups = {title: parser.add_argument_group(title) for title in titles}
    for name, one in _SETTINGS.items():
        if one.help:
            part = _PART_OF.get(name)
            _declare(_FLAGS[name], one, parser if part is None else groups[_GROUPS[part]])


def _declare(flag: str, said: EngineSetting, group: argparse._ActionsContainer) -> None:
    """Add the option of a setting to a group of arguments."""
    if said.is_flag:
        group.add_argument(flag, action="store_true", default=None, help=said.help)
        return
    more = {"type": said.type, "nargs": said.nargs}
    given: dict[str, Any] = {name: one for name, one in more.items() if one is not None}
    group.add_argument(flag, choices=said.choices, metavar=said.metavar, help=said.help, **given)


def from_tables(tables: Sequence[Mapping[str, Any]]) -> tuple[EngineSpec, ...]:
    """Return the engines of `[[engine]]` tables. Raises InvalidRequest."""
    for table in tables:
        if part := next((part for part in _PARTS if part in table), None):
            raise InvalidRequest(f"there is no setting engine.{part}", param=f"engine.{part}")
    return tuple(EngineSpec.of(**table) for table in tables)


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A flat table as its parts."""
    made: dict[str, Any] = {}
    for name, value in settings.items():
        part = _PART_OF.get(name)
        (made if part is None else made.setdefault(part, {}))[name] = value
    return made


def _engine_of(settings: Mapping[str, Any], written: Mapping[str, str]) -> EngineSpec:
    """The engine of flat settings, which the operator wrote by the names `written`."""
    given = dict(settings)
    if given.get("connect") is not None:
        given.setdefault("engine", "openai")
    model = given.pop("model", None) if given.get("engine") == "openai" else None
    if model is not None and given.setdefault("served", model) != model:
        raise InvalidRequest(
            f"the endpoint's name of the model is given twice, {model!r} as the model and "
            f"{given['served']!r} as {written['served']}: leave one out",
            param="served",
        )
    made = make(EngineSpec, _nested(given), "engine.", flat=_PARTS)
    refuse_others(given, made.taker, ENGINE_TAKERS, written)
    return made


def given_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The settings of an engine that the command line gives, as a table has them."""
    given = {key: value for key, value in vars(args).items() if value is not None and key in _NAMES}
    for name in given.keys() & {"vllm_arguments", "llama_arguments"}:
        given[name] = _words(given[name])
    return given


def from_settings(given: Mapping[str, Any], *, joined: bool = False) -> tuple[EngineSpec, ...]:
    """Return the engine of settings from the command line. If engines are `joined`, settings
    without a model, an engine or an address are none. Raises InvalidRequest."""
    if joined and not given.keys() & {"model", "engine", "connect"}:
        if given:
            raise InvalidRequest(
                f"{_FLAGS[next(iter(given))]} describes an engine, and only engines that join "
                "serve here: give MODEL or --engine, or leave it out",
                param=next(iter(given)),
            )
        return ()
    return (_engine_of(given, _FLAGS),)


def from_arguments(args: argparse.Namespace) -> tuple[EngineSpec, ...]:
    """Return the engine that the command line describes, or none if engines only join."""
    return from_settings(given_settings(args), joined=bool(getattr(args, "engines_on", None)))


def _words(given: Sequence[str]) -> tuple[str, ...]:
    """The words for an engine's command line. A word that begins with a dash is taken for one of
    our own options, so `--vllm-arguments="--block-size 32"` may give all of them as one text."""
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
