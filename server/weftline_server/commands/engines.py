"""Makes the engines that an operator describes, and declares the arguments that describe one."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from weftline.contract.errors import InvalidRequest
from weftline_engine.api import Engine
from weftline_engine.models import DEFAULT_MODEL, for_stream, resolve
from weftline_engine.null import LatencyProfile, NullConfig, NullEngine, NullMode
from weftline_engine.simulation import SimulatedConfig, SimulatedEngine, StepCost
from weftline_server.commands.engine_spec import (
    DIALECTS,
    ENDPOINT_SCHEDULERS,
    KINDS,
    SCHEDULERS,
    EngineSpec,
)

WORDS_MODE = "words"  # of the null engine


def factories(specs: Sequence[EngineSpec]) -> dict[str, Callable[[], Engine]]:
    """Return the factory of each engine by its name. Downloads missing models."""
    found: dict[str, Callable[[], Engine]] = {}
    for spec in specs:
        name = spec.name or spec.engine
        number = 1
        while spec.name is None and name in found:
            number += 1
            name = f"{spec.engine}-{number}"
        if name in found:
            raise InvalidRequest(f"two engines are called {name!r}: rename one", param="name")
        found[name] = factory(spec)
    return found


def factory(spec: EngineSpec) -> Callable[[], Engine]:
    """Return a function that makes this engine, also again after it has died."""
    return {"torch": _torch, "vllm": _vllm, "openai": _openai, "null": _null}[spec.engine](spec)


def _null(spec: EngineSpec) -> Callable[[], Engine]:
    if spec.null.null_mode == WORDS_MODE:
        return _words(spec)
    script = NullConfig.script_from(Path(spec.null.null_script)) if spec.null.null_script else ()
    config = NullConfig(
        mode=NullMode(spec.null.null_mode),
        script=script,
        latency=LatencyProfile(fill_s=spec.null.null_fill_s, step_s=spec.null.null_step_s),
        model=spec.call_it or "null",
        max_running=spec.max_running or 1024,
    )
    return lambda: NullEngine(config)


def _words(spec: EngineSpec) -> Callable[[], Engine]:
    """The null engine with a KV cache and steps: a simulated one, in real time."""
    step_s = spec.null.null_step_s
    cost = StepCost(step_s=step_s, fill_s=spec.null.null_fill_s, sequence_s=step_s / 8)
    usual = SimulatedConfig(cost=cost, any_words=True, model=spec.call_it or "null")
    config = dataclasses.replace(
        usual,
        kv_tokens=spec.kv_tokens or usual.kv_tokens,
        max_running=spec.max_running or usual.max_running,
    )
    return lambda: SimulatedEngine(config)


# The other engines are imported only when used: each needs packages that may not be installed.


def _torch(spec: EngineSpec) -> Callable[[], Engine]:
    from weftline_engine.embedded.config import EmbeddedConfig
    from weftline_engine.transport.process import ProcessEngine

    try:
        config = EmbeddedConfig(
            model=_weights(spec),
            name=spec.call_it,
            dtype=spec.dtype,
            device=spec.embedded.device,
            load_format=spec.embedded.load_format,
            quantize=spec.embedded.quantize,
            kv_tokens=spec.kv_tokens,
            kv_fraction=spec.embedded.kv_fraction,
            host_kv_tokens=spec.embedded.host_kv_tokens,
            max_running=spec.max_running or 64,
            cores=spec.embedded.cores,
            tree_attention=spec.embedded.tree_attention,
            drafting=spec.embedded.drafting,
        )
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    return lambda: ProcessEngine(config)


def _weights(spec: EngineSpec) -> Path:
    """Return the model's directory. A dummy model has random weights and needs only config.json."""
    if spec.embedded.load_format != "dummy":
        return resolve(spec.model or DEFAULT_MODEL, progress=for_stream(), direct=True)
    directory = Path(spec.model or ".")
    if not (directory / "config.json").is_file():
        raise InvalidRequest(
            f"{directory} holds no config.json, and a dummy model needs one", param="model"
        )
    return directory.absolute()


def _vllm(spec: EngineSpec) -> Callable[[], Engine]:
    from weftline_engine.vllm.config import SchedulerChoice, VLLMConfig
    from weftline_engine.vllm.engine import VLLMEngine

    if spec.dtype == "int8":
        raise InvalidRequest("dtype int8 needs the embedded engine: --engine torch", param="dtype")
    config = VLLMConfig(
        model=resolve(spec.model or DEFAULT_MODEL, progress=for_stream()),
        python=spec.vllm.engine_python,
        connect=_endpoint(spec) if spec.endpoint.connect else None,
        served=spec.endpoint.served,
        name=spec.call_it,
        dtype=spec.dtype,
        max_model_len=spec.endpoint.context_limit,
        max_running=spec.max_running or 64,
        tensor_parallel=spec.vllm.tensor_parallel,
        scheduler=SchedulerChoice(spec.vllm.vllm_scheduler),
        arguments=spec.vllm.vllm_arguments,
    )
    return lambda: VLLMEngine(config)


def _openai(spec: EngineSpec) -> Callable[[], Engine]:
    from weftline_engine.openai.engine import Dialect, OpenAIConfig, OpenAIEngine
    from weftline_engine.openai.scheduling import EndpointScheduler

    config = OpenAIConfig(
        endpoint=_endpoint(spec),
        model=spec.endpoint.served,
        name=spec.call_it,
        dialect=Dialect(spec.endpoint.dialect),
        extras=spec.endpoint.extras,
        scheduler=EndpointScheduler(spec.endpoint.endpoint_scheduler),
        context_limit=spec.endpoint.context_limit,
        max_running=spec.max_running or 64,
    )
    return lambda: OpenAIEngine(config)


def _endpoint(spec: EngineSpec) -> Any:
    from weftline_engine.openai.endpoint import EndpointConfig

    assert spec.endpoint.connect is not None
    url = spec.endpoint.connect.rstrip("/")
    if not url.endswith("/v1"):
        url += "/v1"
    try:
        return EndpointConfig(url=url, key=os.environ.get(spec.endpoint.connect_key_env))
    except ValueError as error:
        raise InvalidRequest(str(error), param="connect") from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that describe one engine."""
    parser.add_argument(
        "--engine", choices=KINDS, help="kind of engine; torch is the embedded one (default: torch)"
    )
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float32", "int8"),
        help="type of weights, activations and KV cache (default: bfloat16); int8 is for the "
        "embedded engine on a CPU: faster, but another text",
    )
    _add_embedded_arguments(parser.add_argument_group("the embedded engine"))
    parser.add_argument(
        "--call-it", metavar="NAME", help="the model's name for clients (default: its own name)"
    )
    parser.add_argument(
        "--max-running",
        type=int,
        metavar="CALLS",
        help="most calls that the engine runs at once (default: 64; null engine: 1024)",
    )
    _add_http_arguments(parser.add_argument_group("engines behind HTTP: vllm and openai"))
    _add_null_arguments(parser.add_argument_group("the null engine, which has no model"))


def _add_embedded_arguments(torch: argparse._ArgumentGroup) -> None:
    torch.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        help="where the model runs; auto takes a GPU if there is one (default: auto)",
    )
    torch.add_argument(
        "--load-format",
        choices=("auto", "dummy"),
        help="dummy makes random weights from MODEL/config.json, for benchmarks (default: auto)",
    )
    torch.add_argument(
        "--quantize",
        choices=("none", "q8_0", "q4_0"),
        help="quantise weights of 16 bits and more when they are loaded, for the C kernels "
        "(default: none); a quantised GGUF file keeps its types",
    )
    torch.add_argument(
        "--kv-tokens",
        type=int,
        metavar="TOKENS",
        help="size of the KV cache in tokens (default: see --kv-fraction)",
    )
    torch.add_argument(
        "--kv-fraction",
        type=float,
        metavar="SHARE",
        help="share of the memory, free after the model is loaded, that the KV cache takes "
        "(default: 0.85 on a GPU; a third on the CPU, at most 65,536 tokens)",
    )
    torch.add_argument(
        "--host-kv-tokens",
        type=int,
        metavar="TOKENS",
        help="tokens of contexts that are copied to host memory while a tool runs and others wait "
        "for room (default: 0)",
    )


def _add_http_arguments(other: argparse._ArgumentGroup) -> None:
    other.add_argument("--connect", metavar="URL", help="address of a running endpoint")
    other.add_argument(
        "--engine-python", metavar="PATH", help="interpreter that has vLLM, to start vLLM with"
    )
    other.add_argument(
        "--served",
        metavar="NAME",
        help="the endpoint's name of the model (default: the first that it lists)",
    )
    other.add_argument(
        "--dialect",
        choices=DIALECTS,
        help="which OpenAI API to call: chat/completions, completions, or the one that fits the "
        "call (default: both)",
    )
    other.add_argument(
        "--extras",
        action="store_true",
        help="send sampling parameters that OpenAI lacks, such as top_k (default: leave them out)",
    )
    other.add_argument(
        "--endpoint-scheduler",
        choices=ENDPOINT_SCHEDULERS,
        help="tell the endpoint's scheduler, in its own fields, the place of each call in the plan "
        "and the session (default: none)",
    )
    other.add_argument(
        "--context-limit",
        type=int,
        metavar="TOKENS",
        help="longest prompt plus output in tokens (default: what the endpoint states, else 8192)",
    )
    _add_vllm_arguments(other)


def _add_vllm_arguments(other: argparse._ArgumentGroup) -> None:
    other.add_argument(
        "--tensor-parallel",
        type=int,
        metavar="GPUS",
        help="number of GPUs that one vLLM uses (default: 1)",
    )
    other.add_argument(
        "--vllm-scheduler",
        choices=SCHEDULERS,
        help="whose scheduler a vLLM that is started runs; auto is weftline's where it knows the "
        "version of vLLM (default: auto)",
    )
    other.add_argument(
        "--vllm-arguments",
        nargs="*",
        metavar="WORD",
        help='words to add to vLLM\'s command line, as --vllm-arguments="--block-size 32" '
        "(default: none)",
    )


def _add_null_arguments(null: argparse._ArgumentGroup) -> None:
    null.add_argument(
        "--null-mode",
        choices=(*NullMode, WORDS_MODE),
        default=NullMode.ECHO,
        help="echo the prompt, follow --null-script, or emit max_tokens words; words has steps and "
        "a KV cache of --kv-tokens, in which each word is a token (default: echo)",
    )
    null.add_argument(
        "--null-script",
        metavar="FILE",
        help='JSON file of replies: [{"when": text, "reply": text}, …]',
    )
    null.add_argument(
        "--null-fill-s",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="seconds that each prompt token takes (default: %(default)s)",
    )
    null.add_argument(
        "--null-step-s",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="seconds that each output token takes (default: %(default)s)",
    )
