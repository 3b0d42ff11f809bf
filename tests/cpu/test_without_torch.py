"""The CPU engine in processes in which torch cannot be imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from weftline.local import local_server
from weftline_engine.own.embedded import devices
from weftline_engine.own.embedded.config import Device
from weftline_engine.own.embedded.model import decoders
from weftline_engine.own.embedded.model.config import ModelError
from weftline_engine.own.embedded.model.decoders import load_decoder

Write = Callable[..., Path]
WITHOUT = Path(__file__).parents[2] / ".ci" / "without_torch"


def asked(model: Path, *options: str) -> list[tuple[str, list[float]]]:
    """Texts and log probabilities that a server of this model answers: greedy, and drawn."""
    found = []
    with local_server(str(model), "--kv-tokens", "2048", *options) as url:
        for way in ({"temperature": 0}, {"temperature": 1.0, "top_p": 0.9, "seed": 5}):
            body = {"prompt": "abc", "max_tokens": 8, "ignore_eos": True, "logprobs": 2, **way}
            answer = httpx2.post(f"{url}/v1/completions", json=body, timeout=60).json()
            choice = answer["choices"][0]
            found.append((choice["text"], choice["logprobs"]["token_logprobs"]))
    return found


def test_a_server_answers_without_torch(
    tiny_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same texts and the same log probabilities as where torch is installed."""
    expected = asked(tiny_directory)
    assert all(len(values) == 8 for _, values in expected)
    monkeypatch.setenv("PYTHONPATH", str(WITHOUT))
    assert asked(tiny_directory) == expected


def test_a_gguf_is_converted_without_torch(write_gguf: Write, tmp_path: Path) -> None:
    """Nor with transformers or safetensors: the process finds none of them."""
    source = write_gguf(tmp_path / "tiny.gguf")
    program = f"""
import sys
sys.modules.update(dict.fromkeys(("torch", "transformers", "safetensors")))
from pathlib import Path
from weftline_engine.own.models import resolve
home = Path({str(tmp_path)!r})
for direct in (False, True):
    found = resolve({str(source)!r}, home=home, direct=direct)
    print(sorted(path.suffix for path in found.iterdir() if path.stem == "tokenizer"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "['.json']\n" * 2, done.stderr


def test_what_needs_torch_says_how_to_install_it(
    tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A type that the C kernels do not compute in, and a GPU. The CPU is chosen where nothing is
    said."""
    for module in (devices, decoders):
        monkeypatch.setattr(module, "has_torch", lambda: False)
    line = r"pip install 'weftline\[server,engine,gpu\]'"
    with pytest.raises(ModelError, match=f"this model needs torch: {line}. The C kernels do not"):
        load_decoder(tiny_directory, "float32", 16, tmp_path)
    with pytest.raises(ModelError, match=f"torch is not installed; {line}, or give --device cpu"):
        devices.choose(Device.CUDA, "bfloat16")
    assert devices.choose(Device.AUTO, "bfloat16").kind == "cpu"
