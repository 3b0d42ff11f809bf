"""A model of random weights runs from its config.json alone."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch

from tests.families import FAMILIES
from weftline.local import local_server
from weftline_engine.api import Part
from weftline_engine.own.embedded.config import EmbeddedConfig
from weftline_engine.own.embedded.devices import choose
from weftline_engine.own.embedded.host_device import HOST
from weftline_engine.own.embedded.model.config import LlamaConfig, ModelError
from weftline_engine.own.embedded.model.families import read_config
from weftline_engine.own.embedded.model.torch_decoders import for_device
from weftline_engine.own.loading import load


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_dummy_needs_nothing_but_its_config(
    dtype: str,
    generate: Callable[..., Any],
    tiny_directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has a tokenizer, decodes the same in a batch as alone, and loads the same again."""
    monkeypatch.setattr("weftline_engine.own.loading.default_home", lambda: tmp_path / "home")
    config = json.loads((tiny_directory / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": 4000}))
    words = {
        "kv_tokens": 512,
        "host_kv_tokens": 0,
        "block_size": 16,
        "max_running": 8,
        "step_tokens": 64,
        "seed": 0,
        "device": "cpu",
        "no_tree_attention": False,
        "no_drafting": False,
    }
    options = Namespace(
        model=tmp_path, name="d", dtype=dtype, load_format="dummy", quantize="none", **words
    )

    def run(*prompts: list[int]) -> list[list[int]]:
        core, description = load(options)
        assert Path(description.tokenizer or "").is_file()
        found: dict[str, list[int]] = {}
        for i, prompt in enumerate(prompts):
            core.submit(generate(f"op{i}", prompt))
        while core.busy:
            for event in core.step():
                if isinstance(event, Part):
                    found.setdefault(event.op, []).extend(event.tokens)
        return list(found.values())

    first, second = run([1, 3999, 5], [7, 8])
    assert len(set(first)) > 3
    assert run([1, 3999, 5]) == [first]
    assert run([7, 8]) == [second]


def test_a_dummy_is_served_from_its_config_json(
    tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`weftline serve DIR --load-format dummy`, where DIR holds a config.json and nothing else."""
    monkeypatch.setenv("WEFTLINE_HOME", str(tmp_path / "home"))
    model = tmp_path / "model"
    model.mkdir()
    shutil.copy(tiny_directory / "config.json", model)
    options = ("--load-format", "dummy", "--kv-tokens", "512", "--dtype", "float32")
    with local_server(str(model), *options) as url:
        body = {"prompt": "abc", "max_tokens": 5, "ignore_eos": True}
        answer = httpx2.post(f"{url}/v1/completions", json=body, timeout=60).json()
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 5)


def test_a_missing_device_is_an_error() -> None:
    """auto takes the CPU then. With cuda the error says why there is none."""
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    assert (choose("auto", "bfloat16"), choose("cpu", "float64")) == (HOST, HOST)
    with pytest.raises(ModelError, match="torch sees no CUDA device; give --device cpu"):
        choose("cuda", "bfloat16")


def test_an_unknown_load_format_is_refused(tmp_path: Path) -> None:
    """A known one reaches the engine's process as an argument."""
    with pytest.raises(ValueError, match="none of auto, dummy"):
        EmbeddedConfig(model=tmp_path, load_format="npz")
    words = EmbeddedConfig(model=tmp_path, load_format="dummy").arguments(3)
    assert words[words.index("--load-format") + 1] == "dummy"


def test_a_device_gets_no_window(tiny_llama: Callable[..., Path], tmp_path: Path) -> None:
    """Attention on a GPU has no windows and no caps, and no kernel there has convolutions. So the
    context ends where the first window would, and a cap and convolutions are refused."""
    config = read_config(tiny_llama(tmp_path / "m", **FAMILIES["Mistral, windows"]))
    assert isinstance(config, LlamaConfig)
    assert (config.window, config.context_limit) == (20, 512)
    found = for_device(config)
    assert isinstance(found, LlamaConfig)
    assert (found.window, found.context_limit) == (None, 20)
    gemma = read_config(tiny_llama(tmp_path / "g", **FAMILIES["Gemma 2, caps"]))
    with pytest.raises(ModelError, match="attn_logit_softcapping is not supported on a GPU"):
        for_device(gemma)
    lfm2 = read_config(tiny_llama(tmp_path / "l", **FAMILIES["LFM2, convolutions"]))
    with pytest.raises(ModelError, match="conv_L_cache is not supported on a GPU yet"):
        for_device(lfm2)
