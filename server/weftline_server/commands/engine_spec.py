"""An engine as its operator describes it, read from the command line or an `[[engine]]` table."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from weftline.contract.errors import InvalidRequest
from weftline_engine.pretend.null import NullMode
from weftline_server.commands.engine_options import EngineOption, option_of, setting
from weftline_server.commands.option_takers import (
    ALL,
    CONNECTS,
    LLAMA,
    NULL,
    OPENAI,
    RUNNING,
    TORCH,
    VLLM,
    refuse_others,
)
from weftline_server.commands.settings import make

EngineName = Literal["torch", "vllm", "sglang", "llamacpp", "openai", "null"]
Dialect = Literal["chat", "completions", "both"]
EndpointToolsName = Literal["auto", "native", "text"]
EndpointSchedulerName = Literal["none", "vllm", "sglang", "dynamo"]
VLLMSchedulerName = Literal["auto", "weftline", "vllm"]


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


WORDS_MODE = "words"  # of the null engine


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedSpec:
    """What only the embedded engine has. `cores` are its CPU cores; empty means all."""

    device: str = setting(
        "auto",
        TORCH,
        "where the model runs; auto takes a GPU if there is one (default: auto)",
        choices=("auto", "cpu", "cuda"),
    )
    load_format: str = setting(
        "auto",
        (*TORCH, *VLLM),
        "dummy makes random weights from MODEL/config.json, for benchmarks (default: auto)",
        choices=("auto", "dummy"),
    )
    quantize: str = setting(
        "none",
        TORCH,
        "quantise weights of 16 bits and more when they are loaded, for the C kernels (default: "
        "none); a quantised GGUF file keeps its types",
        choices=("none", "q8_0", "q4_0"),
    )
    kv_fraction: float | None = setting(
        None,
        TORCH,
        "share of the memory, free after the model is loaded, that the KV cache takes (default: "
        "0.85 on a GPU; a third on the CPU, at most 65,536 tokens)",
        metavar="SHARE",
        type=float,
    )
    host_kv_tokens: int = setting(
        0,
        TORCH,
        "tokens of contexts that are copied to host memory while a tool runs and others wait for "
        "room (default: 0)",
        metavar="TOKENS",
        type=int,
    )
    cores: tuple[int, ...] = setting((), TORCH)
    tree_attention: bool = setting(True, TORCH)
    drafting: bool = setting(True, TORCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSpec:
    """An endpoint that runs already, and how to talk to it.

    `served` is its name of the model; None takes its first. Without a name of an engine, `connect`
    is an endpoint that speaks OpenAI's API. `connect_key_env` names the environment
    variable that holds the key of `connect`, so that no file has to hold it. `kv_events` is where
    it publishes its KV events. Of a vLLM's data-parallel ranks, the engine is
    `data_parallel_rank`.
    """

    connect: str | None = setting(None, RUNNING, "address of a running endpoint", metavar="URL")
    connect_key_env: str = setting("WEFTLINE_CONNECT_KEY", RUNNING)
    served: str | None = setting(
        None,
        RUNNING,
        "the endpoint's name of the model (default: the first that it lists)",
        metavar="NAME",
    )
    kv_events: str | None = setting(
        None,
        (f"vllm{CONNECTS}", "sglang"),
        "where the vLLM or SGLang of --connect publishes its KV events, as tcp://HOST:5557; with a "
        "comma and where it sends missed ones again (default: nowhere)",
        metavar="ADDRESS",
    )
    data_parallel_rank: int | None = setting(
        None,
        (f"vllm{CONNECTS}",),
        "of the ranks of the vLLM of --connect, send all calls to this one (default: vLLM chooses)",
        metavar="N",
        type=int,
    )
    dialect: Dialect = setting(
        "both",
        OPENAI,
        "which OpenAI API to call: chat/completions, completions, or the one that fits the call "
        "(default: both)",
        choices=get_args(Dialect),
    )
    extras: bool = setting(
        False,
        OPENAI,
        "send sampling parameters that OpenAI lacks (default: leave them out)",
        is_flag=True,
    )
    endpoint_tools: EndpointToolsName = setting(
        "auto",
        OPENAI,
        "send tools in the fields of OpenAI's API (native), or describe them in the prompt (text); "
        "auto sends fields until the endpoint refuses them (default: auto)",
        choices=get_args(EndpointToolsName),
    )
    endpoint_scheduler: EndpointSchedulerName = setting(
        "none",
        OPENAI,
        "tell the endpoint's scheduler, in its own fields, the place of each call in the plan and "
        "the session (default: none)",
        choices=get_args(EndpointSchedulerName),
    )
    context_limit: int | None = setting(
        None,
        ("vllm", "llamacpp", *(one for one in RUNNING if one != "sglang")),
        "longest prompt plus output in tokens (default: what the endpoint states, else 8192)",
        metavar="TOKENS",
        type=int,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMSpec:
    """A vLLM that is started."""

    engine_python: str | None = setting(
        None, VLLM, "interpreter that has vLLM, to start vLLM with", metavar="PATH"
    )
    tensor_parallel: int = setting(
        1, VLLM, "number of GPUs that one vLLM uses (default: 1)", metavar="GPUS", type=int
    )
    host_kv_gib: float | None = setting(
        None,
        VLLM,
        "host memory into which a vLLM on GPUs copies contexts, and reads them back (default: "
        "none)",
        metavar="GIB",
        type=float,
    )
    vllm_scheduler: VLLMSchedulerName = setting(
        "auto",
        VLLM,
        "whose scheduler a vLLM that is started runs; auto is weftline's where it knows the "
        "version of vLLM (default: auto)",
        choices=get_args(VLLMSchedulerName),
    )
    vllm_arguments: tuple[str, ...] = setting(
        (),
        VLLM,
        'words to add to vLLM\'s command line, as --vllm-arguments="--block-size 32" (default: '
        "none)",
        metavar="WORD",
        nargs="*",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSpec:
    """A llama-server that is started. None looks for it on PATH."""

    llama_server: str | None = setting(
        None,
        LLAMA,
        "the llama-server that the llamacpp engine starts (default: the one on PATH)",
        metavar="PATH",
    )
    llama_arguments: tuple[str, ...] = setting(
        (),
        LLAMA,
        'words to add to llama-server\'s command line, as --llama-arguments="--threads 4" '
        "(default: none)",
        metavar="WORD",
        nargs="*",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NullSpec:
    """What only the null engine has."""

    null_mode: str = setting(
        NullMode.ECHO.value,
        NULL,
        "echo the prompt, follow --null-script, or emit max_tokens words; words has steps and a KV "
        "cache of --kv-tokens, in which each word is a token (default: echo)",
        choices=(*NullMode, WORDS_MODE),
    )
    null_script: str | None = setting(
        None, NULL, 'JSON file of replies: [{"when": text, "reply": text}, …]', metavar="FILE"
    )
    null_fill_s: float = setting(
        0.0,
        NULL,
        "seconds that each prompt token takes (default: 0.0)",
        metavar="SECONDS",
        type=float,
    )
    null_step_s: float = setting(
        0.0,
        NULL,
        "seconds that each output token takes (default: 0.0)",
        metavar="SECONDS",
        type=float,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One engine. Raises InvalidRequest.

    `engine` is the kind of engine. `name` is its own name; None takes the kind, numbered from the
    second on. `model` is the model to load. `call_it` is the model's name for clients. An
    `[[engine]]` table is flat: the settings of the parts stand beside these.
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
    embedded: EmbeddedSpec = field(default_factory=EmbeddedSpec)
    endpoint: EndpointSpec = field(default_factory=EndpointSpec)
    vllm: VLLMSpec = field(default_factory=VLLMSpec)
    llama: LlamaSpec = field(default_factory=LlamaSpec)
    null: NullSpec = field(default_factory=NullSpec)

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
    "embedded": EmbeddedSpec,
    "endpoint": EndpointSpec,
    "vllm": VLLMSpec,
    "llama": LlamaSpec,
    "null": NullSpec,
}
_PART_OF = {one.name: part for part, cls in _PARTS.items() for one in dataclasses.fields(cls)}
_OPTIONS: Mapping[str, EngineOption] = {
    one.name: option_of(one)
    for cls in (EngineSpec, *_PARTS.values())
    for one in dataclasses.fields(cls)
    if one.name not in _PARTS
}
# By the setting of an `[[engine]]` table.
ENGINE_TAKERS = {name: option.takers for name, option in _OPTIONS.items()}
_NAMES = {one.name for one in dataclasses.fields(EngineSpec)} - _PARTS.keys() | _PART_OF.keys()
_FLAGS = {name: "MODEL" if name == "model" else f"--{name.replace('_', '-')}" for name in _NAMES}


_GROUPS = {
    "embedded": "the embedded engine",
    "endpoint": "engines behind HTTP: vllm, sglang, llamacpp and openai",
    "vllm": "engines behind HTTP: vllm, sglang, llamacpp and openai",
    "llama": "engines behind HTTP: vllm, sglang, llamacpp and openai",
    "null": "the null engine, which has no model",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that describe one engine. A setting without help is for files alone."""
    titles = dict.fromkeys(_GROUPS.values())
    groups = {title: parser.add_argument_group(title) for title in titles}
    for name, option in _OPTIONS.items():
        if option.help:
            part = _PART_OF.get(name)
            option.declare(_FLAGS[name], parser if part is None else groups[_GROUPS[part]])


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
