"""Makes the engines that an operator describes."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weftline.contract.errors import InvalidRequest
from weftline_engine.api import Engine
from weftline_engine.api.engine_option import values
from weftline_engine.own.models import (
    DEFAULT_MODEL,
    WORDS_PREFIX,
    ModelUnavailable,
    for_stream,
    gguf_file,
    gguf_words,
    resolve,
    words_directory,
)
from weftline_engine.own.models.short_names import short_names
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullEngine, NullMode
from weftline_engine.pretend.null_settings import WORDS_MODE
from weftline_engine.pretend.simulation import SimulatedConfig, SimulatedEngine, StepCost
from weftline_server.commands.coding_agents import KvShape, shape_of
from weftline_server.commands.engine_spec import EngineSpec
from weftline_server.prompt.tokenizer_files import read_ahead

if TYPE_CHECKING:
    from weftline_engine.remote.llamacpp.state_cut import StateCut


def factories(specs: Sequence[EngineSpec]) -> dict[str, Callable[[], Engine]]:
    """Return the factory of each engine by its name. Downloads missing models."""
    return {name: factory(spec) for name, spec in by_name(specs).items()}


def by_name(specs: Sequence[EngineSpec]) -> dict[str, EngineSpec]:
    """Return the engines by their names. Raises InvalidRequest."""
    found: dict[str, EngineSpec] = {}
    for spec in specs:
        name = spec.name or spec.engine
        number = 1
        while spec.name is None and name in found:
            number += 1
            name = f"{spec.engine}-{number}"
        if name in found:
            raise InvalidRequest(f"two engines are called {name!r}: rename one", param="name")
        found[name] = spec
    return found


def factory(spec: EngineSpec) -> Callable[[], Engine]:
    """Return a function that makes this engine, also again after it has died."""
    makers = {
        "torch": _torch,
        "vllm": _vllm,
        "sglang": _sglang,
        "llamacpp": _llamacpp,
        "openai": _openai,
        "null": _null,
    }
    return makers[spec.engine](spec)


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
    from weftline_engine.own.embedded.config import EmbeddedConfig
    from weftline_engine.transport.process import ProcessEngine

    try:
        config = EmbeddedConfig(
            model=_weights(spec, direct=True),
            name=spec.call_it or _name_of(spec.model),
            dtype=spec.dtype,
            kv_tokens=spec.kv_tokens,
            max_running=spec.max_running or 64,
            **values(spec.embedded),
        )
    except ValueError as error:
        raise InvalidRequest(str(error)) from None

    def made() -> Engine:
        read_ahead(config.model / "tokenizer.json")
        return ProcessEngine(config)

    return made


def _name_of(model: str | None) -> str | None:
    """The name for clients of a GGUF file or a short name, where it is not that of its directory in
    the cache."""
    if model is None:
        return None
    if model.endswith(".gguf"):
        return Path(model).stem
    return model if any(one.name == model.lower() for one in short_names()) else None


def _weights(spec: EngineSpec, *, direct: bool) -> Path:
    """Return the model's directory. A dummy model has random weights and needs only config.json."""
    if spec.embedded.load_format != "dummy":
        return resolve(spec.model or DEFAULT_MODEL, progress=for_stream(), direct=direct)
    directory = Path(spec.model or ".")
    if not (directory / "config.json").is_file():
        raise InvalidRequest(
            f"{directory} holds no config.json, and a dummy model needs one", param="model"
        )
    return directory.absolute()


def _vllm(spec: EngineSpec) -> Callable[[], Engine]:
    from weftline_engine.remote.vllm.config import VLLMConfig
    from weftline_engine.remote.vllm.engine import VLLMEngine

    dummy = ("--load-format", "dummy") if spec.embedded.load_format == "dummy" else ()
    if spec.endpoint.connect is None:
        served, model, name = None, _weights(spec, direct=False), spec.call_it
    else:
        served, model, name = _words_behind(spec)
    config = VLLMConfig(
        model=model,
        connect=_endpoint(spec) if spec.endpoint.connect else None,
        served=served,
        kv_events=_kv_events(spec),
        rank=spec.endpoint.data_parallel_rank,
        name=name,
        dtype=spec.dtype,
        max_model_len=spec.endpoint.context_limit,
        max_running=spec.max_running or 64,
        **values(spec.vllm) | {"vllm_arguments": (*dummy, *spec.vllm.vllm_arguments)},
    )
    return lambda: VLLMEngine(config)


def _sglang(spec: EngineSpec) -> Callable[[], Engine]:
    from weftline_engine.remote.sglang.config import SGLangConfig
    from weftline_engine.remote.sglang.engine import SGLangEngine

    served, model, name = _words_behind(spec)
    config = SGLangConfig(
        model=model,
        connect=_endpoint(spec, ""),
        served=served,
        name=name,
        kv_events=_kv_events(spec),
        max_running=spec.max_running or 64,
    )
    return lambda: SGLangEngine(config)


def _words_behind(spec: EngineSpec) -> tuple[str | None, Path, str]:
    """The endpoint's name of its model (None for its first), a directory with the tokenizer, and
    the name for clients. The endpoint has the weights, perhaps on another machine."""
    if spec.model is None:
        from weftline_server.commands.endpoint_model import served_model

        name, words = served_model(_endpoint(spec, ""), spec.endpoint.served)
        return name, words, spec.call_it or name
    words = words_directory(spec.model, progress=for_stream())
    own = _name_of(spec.model) or words.name.removeprefix(WORDS_PREFIX)
    return spec.endpoint.served, words, spec.call_it or own


def _kv_events(spec: EngineSpec) -> Any:
    """Where the endpoint of --connect publishes its KV events; None if it does not say."""
    from weftline_engine.remote.prefix_cache.event_feed import EventAddresses

    if spec.endpoint.kv_events is None:
        return None
    try:
        found = EventAddresses.of(spec.endpoint.kv_events)
        if spec.endpoint.data_parallel_rank is not None:
            found.of_rank(spec.endpoint.data_parallel_rank)
        return found
    except ValueError as error:
        raise InvalidRequest(str(error), param="kv_events") from None


def _llamacpp(spec: EngineSpec) -> Callable[[], Engine]:
    from weftline_engine.remote.llamacpp.config import LlamaServerConfig
    from weftline_engine.remote.llamacpp.engine import LlamaEngine
    from weftline_engine.remote.llamacpp.llama_program import ServerMissing, find_server
    from weftline_engine.remote.llamacpp.state_cut import StateCut
    from weftline_server.commands.whole_windows import llama_words

    connects = spec.endpoint.connect is not None
    try:
        server = None if connects else find_server(spec.llama.llama_server)
    except ServerMissing as error:
        raise InvalidRequest(str(error), param="llama_server") from None
    model = None
    if spec.model is not None or not connects:
        model = gguf_file(spec.model or DEFAULT_MODEL, progress=for_stream())
    words = spec.llama.llama_arguments
    if model is not None and not connects:
        words = llama_words(spec, model)
    cut, state = (StateCut.ANYWHERE, 0) if model is None else _states_of(model, words)
    config = LlamaServerConfig(
        llama_server=server,
        connect=_endpoint(spec, "") if connects else None,
        served=spec.endpoint.served,
        model=model,
        words=None if model is None else _words_of(model),
        name=spec.call_it or (None if model is None else _gguf_name(spec.model or DEFAULT_MODEL)),
        slots=spec.max_running,
        context=spec.endpoint.context_limit,
        kv_tokens=spec.kv_tokens,
        llama_arguments=words,
        cut=cut,
        state_bytes=state,
    )
    return lambda: LlamaEngine(config)


def llama_shape(spec: EngineSpec) -> KvShape | None:
    """What decides the KV cache of a llama-server that is started here; None for another engine."""
    from weftline_engine.own.models.gguf_header import GgufHeader

    if spec.engine != "llamacpp" or spec.endpoint.connect is not None:
        return None
    file = gguf_file(spec.model or DEFAULT_MODEL, progress=for_stream())
    try:
        return shape_of(GgufHeader(file).values, file.stat().st_size)
    except ModelUnavailable:  # llama-server may read it all the same
        return None


def _states_of(file: Path, arguments: Sequence[str]) -> tuple[StateCut, int]:
    """Where the states of a GGUF file's model can be cut, and the bytes of one. With --swa-full
    windows are whole."""
    from weftline_engine.own.models.gguf_header import GgufHeader
    from weftline_engine.remote.llamacpp.state_cut import StateCut, cut_of
    from weftline_engine.remote.llamacpp.state_size import state_bytes

    try:
        values = GgufHeader(file).values
    except ModelUnavailable:  # llama-server may read it all the same, and the engine then learns it
        return StateCut.ANYWHERE, 0
    cut = cut_of(values)
    if cut is StateCut.WINDOWS and "--swa-full" in arguments:
        return StateCut.IN_SLOTS, 0
    return cut, state_bytes(values)


def _words_of(file: Path) -> Path | None:
    """The tokenizer of a GGUF file, or None if llama-server must tokenise."""
    try:
        return gguf_words(file, progress=for_stream())
    except (ModelUnavailable, ModuleNotFoundError) as error:
        print(f"weftline: prompts are sent as text, because {error}", file=sys.stderr)
        return None


def _gguf_name(model: str) -> str:
    """The name for clients of a GGUF file, a short name, or a package that holds such a file."""
    return _name_of(model) or model.rpartition(":")[2]


def _openai(spec: EngineSpec) -> Callable[[], Engine]:
    from weftline_engine.remote.openai.engine import OpenAIConfig, OpenAIEngine

    config = OpenAIConfig(
        endpoint=_endpoint(spec),
        model=spec.endpoint.served,
        name=spec.call_it,
        context_limit=spec.endpoint.context_limit,
        max_running=spec.max_running or 64,
        **values(spec.openai),
    )
    return lambda: OpenAIEngine(config)


def _endpoint(spec: EngineSpec, base: str = "/v1") -> Any:
    """The endpoint of --connect, whose address ends with `base`, with or without it."""
    from weftline_engine.remote.openai.endpoint import EndpointConfig

    assert spec.endpoint.connect is not None
    url = spec.endpoint.connect.rstrip("/").removesuffix("/v1") + base
    try:
        return EndpointConfig(url=url, key=os.environ.get(spec.endpoint.connect_key_env))
    except ValueError as error:
        raise InvalidRequest(str(error), param="connect") from None
