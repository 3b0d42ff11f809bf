"""An option is taken by the engine that is described, or refused with the engines that take it."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from weftline.errors import InvalidRequest
from weftline_server.commands import retrieval_tables, serve
from weftline_server.commands.engine_spec import (
    ENGINE_TAKERS,
    EngineSpec,
    from_arguments,
    from_tables,
)

URL = "http://gpu1:8000"
ADVICE = ": leave it out, or choose an engine that takes it"


def given(*words: str) -> EngineSpec:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    [spec] = from_arguments(parser.parse_args(words))
    return spec


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("m", "--llama-server", "p"),
         "--llama-server is an option of llamacpp, and this is torch" + ADVICE),
        (("m", "--served", "x"),
         "--served is an option of vllm --connect, sglang, llamacpp --connect and openai, and this "
         "is torch; the model's name for clients is --call-it"),
        (("m", "--tensor-parallel", "4"),
         "--tensor-parallel is an option of vllm, and this is torch: weftline serve MODEL --engine "
         "vllm --engine-python PYTHON --tensor-parallel GPUS"),
        (("m", "--engine", "vllm", "--engine-python", "p", "--kv-events", "tcp://a:1"),
         "--kv-events is an option of vllm --connect and sglang, and this is vllm without --connect"
         + ADVICE),
        (("m", "--engine", "vllm", "--connect", URL, "--kv-tokens", "9"),
         "--kv-tokens is an option of torch, llamacpp and null, and this is vllm --connect"
         + ADVICE),
        (("--engine", "openai", "--connect", URL, "--dtype", "bfloat16"),
         "--dtype is an option of torch and vllm, and this is openai" + ADVICE),
        (("--connect", URL, "--kv-events", "tcp://a:1"),
         "--kv-events is an option of vllm --connect and sglang, and this is openai" + ADVICE),
        (("m", "--engine", "llamacpp", "--extras"),
         "--extras is an option of openai, and this is llamacpp" + ADVICE),
        (("m", "--engine", "llamacpp", "--connect", URL, "--max-running", "4"),
         "--max-running is an option of torch, vllm, llamacpp, null, vllm --connect, sglang and "
         "openai, and this is llamacpp --connect" + ADVICE),
        (("m", "--null-step-s", "0"),
         "--null-step-s is an option of null, and this is torch" + ADVICE),
        (("m", "--engine", "null"),
         "MODEL is an option of torch, vllm, llamacpp, vllm --connect, sglang, llamacpp --connect "
         "and openai, and this is null" + ADVICE),
    ],
)  # fmt: skip
def test_an_option_of_another_engine_is_refused(words: tuple[str, ...], says: str) -> None:
    """The sentence names who takes it, also where the value is the default."""
    with pytest.raises(InvalidRequest) as raised:
        given(*words)
    assert str(raised.value) == says


def test_int8_says_what_took_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    """An old command line and an old file get one sentence."""
    says = (
        'dtype int8 is gone: use --quantize q8_0 (quantize = "q8_0" in a file), which is as small '
        "and stays nearer to bfloat16"
    )
    with pytest.raises(SystemExit):
        given("m", "--dtype", "int8")
    assert capsys.readouterr().err.endswith(f"argument --dtype: {says}\n")
    with pytest.raises(InvalidRequest) as raised:
        from_tables([{"model": "m", "dtype": "int8"}])
    assert str(raised.value) == says


def test_a_setting_of_another_engine_is_refused_in_a_file() -> None:
    """As on the command line, by its name in the file."""
    with pytest.raises(InvalidRequest) as raised:
        from_tables([{"engine": "null", "device": "cpu"}])
    assert str(raised.value) == "engine.device is an option of torch, and this is null" + ADVICE
    assert raised.value.param == "device"


@pytest.mark.parametrize(
    ("kind", "table", "says"),
    [
        ("embedder", {"connect": URL, "device": "cuda"},
         "embedder.device is an option of a model's directory, and this is an endpoint (connect)"),
        ("reranker", {"model": "m.gguf", "key_env": "K"},
         "reranker.key_env is an option of an endpoint (connect), and this is a GGUF file"),
        ("embedder", {"batch": 8},
         "embedder.batch is an option of a GGUF file and an endpoint (connect), and this is a "
         "model's directory"),
        ("store", {"store": "sqlite", "dsn_env": "D"},
         "store.dsn_env is an option of pgvector, and this is sqlite"),
    ],
)  # fmt: skip
def test_a_setting_of_another_embedder_or_store(
    kind: str, table: dict[str, Any], says: str
) -> None:
    """They are refused in the same words."""
    with pytest.raises(InvalidRequest) as raised:
        retrieval_tables.from_tables({kind: [table]})
    assert str(raised.value) == says + ADVICE


def test_each_setting_is_taken_by_an_engine() -> None:
    """The table has every setting, and nothing else."""
    spec, flat = EngineSpec.of(), set()
    for one in dataclasses.fields(spec):
        part = getattr(spec, one.name)
        fields = dataclasses.fields(part) if dataclasses.is_dataclass(part) else [one]
        flat |= {field.name for field in fields}
    assert flat == ENGINE_TAKERS.keys()
    assert all(ENGINE_TAKERS.values())


SPECS: list[dict[str, Any]] = [
    {"engine": "torch", "model": "m", "kv_tokens": 512, "quantize": "q8_0"},
    {"engine": "vllm", "model": "m", "engine_python": "p", "vllm_arguments": ["--seed", "1"]},
    {"engine": "vllm", "model": "m", "connect": URL, "served": "s", "data_parallel_rank": 1},
    {"engine": "sglang", "model": "m", "connect": URL, "served": "s", "kv_events": "tcp://a:1"},
    {"engine": "llamacpp", "model": "m", "llama_server": "p", "context_limit": 9},
    {"engine": "llamacpp", "connect": URL, "served": "s"},
    {"engine": "openai", "connect": URL, "served": "s", "extras": True},
    {"engine": "null", "null_mode": "words", "kv_tokens": 512},
]


@pytest.mark.parametrize("table", SPECS, ids=[str(one["engine"]) for one in SPECS])
def test_an_engine_is_described_to_its_process(table: dict[str, Any]) -> None:
    """A parent of several servers describes an engine by its settings: those of other engines are
    left out, so they are read back."""
    [spec] = from_tables([table])
    assert EngineSpec.of(**spec.settings()) == spec
    assert {"device", "null_mode"} & spec.settings().keys() == {
        "torch": {"device"},
        "null": {"null_mode"},
    }.get(table["engine"], set())


def test_an_address_without_an_engine_is_an_openai_endpoint() -> None:
    """On the command line and in a file. MODEL is the endpoint's name of it, as --served is."""
    spec = given("--connect", URL)
    assert (spec.engine, spec.endpoint.connect, spec.endpoint.served) == ("openai", URL, None)
    assert not spec.takes_default
    assert from_tables([{"connect": URL}]) == (spec,)
    names = {
        given("big", "--connect", URL).endpoint.served,
        given("--connect", URL, "--served", "big").endpoint.served,
        given("--engine", "openai", "--connect", URL, "--served", "big").endpoint.served,
        given("big", "--engine", "openai", "--connect", URL, "--served", "big").endpoint.served,
        from_tables([{"engine": "openai", "connect": URL, "model": "big"}])[0].endpoint.served,
    }
    assert names == {"big"}
    with pytest.raises(InvalidRequest, match="given twice, 'a' as the model and 'b' as --served:"):
        given("a", "--connect", URL, "--served", "b")


def test_a_file_with_engines_takes_no_option_of_one(tmp_path: Path) -> None:
    """It was ignored. The sentence names what the command line gives."""
    config = tmp_path / "weftline.toml"
    config.write_text('[[engine]]\nengine = "null"\n')
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    args = parser.parse_args(["--config", str(config), "--null-step-s", "1", "--dtype", "float32"])
    with pytest.raises(InvalidRequest, match=r"\(dtype, null_step_s from the command line\)$"):
        serve.run(args)


def test_a_server_of_joining_engines_takes_no_option_of_one() -> None:
    """Without MODEL, --engine and --connect there is no engine that the option could be of."""
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    assert from_arguments(parser.parse_args(["--engines-on", "127.0.0.1:1"])) == ()
    args = parser.parse_args(["--engines-on", "127.0.0.1:1", "--max-running", "4"])
    with pytest.raises(InvalidRequest, match=r"^--max-running describes an engine, and only"):
        from_arguments(args)
