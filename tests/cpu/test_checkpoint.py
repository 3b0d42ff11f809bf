"""A model directory that cannot be run gives one sentence that says why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from weftline_engine.embedded.model.checkpoint import Checkpoint
from weftline_engine.embedded.model.config import ModelError
from weftline_engine.embedded.model.decoders import load_model


@pytest.fixture
def copy(tiny_directory: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_directory, tmp_path / "model"))


def shard(directory: Path) -> list[Path]:
    """Split the weights into two files and an index, as large models are published."""
    single = directory / "model.safetensors"
    tensors = load_file(single)
    single.unlink()
    names = sorted(tensors)
    paths = [directory / f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    parts = names[::2], names[1::2]
    for path, part in zip(paths, parts, strict=True):
        save_file({name: tensors[name] for name in part}, path)
    weight_map = {name: path.name for path, part in zip(paths, parts, strict=True) for name in part}
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    return paths


def test_shards_read_like_one_file(copy: Path, tiny_directory: Path) -> None:
    """A checkpoint that is cut into several files has the same tensors."""
    expected = load_file(tiny_directory / "model.safetensors")
    shard(copy)
    checkpoint = Checkpoint(copy)
    for name, tensor in expected.items():
        assert torch.equal(checkpoint.read(name, tuple(tensor.shape)), tensor)


def remove_shard(directory: Path) -> None:
    shard(directory)[1].unlink()


def truncate(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def truncate_header(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])


def write_foreign(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"\x05\0\0\0\0\0\0\0hello, this is no model")


def remove_weights(directory: Path) -> None:
    (directory / "model.safetensors").unlink()


def remove_tensor(directory: Path) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.norm.weight"]
    save_file(tensors, path)


def configure(**changes: Any) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (remove_shard, "shard model-00002-of-00002.safetensors of .* is missing"),
        (truncate, "is truncated at tensor"),
        (truncate_header, "truncated or no safetensors"),
        (write_foreign, "header is not JSON"),
        (remove_weights, "holds no .*safetensors file"),
        (remove_tensor, "hold no tensor model.norm.weight"),
        (configure(architectures=["MambaForCausalLM"]), "MambaForCausalLM is not supported"),
        (configure(hidden_act="gelu"), "hidden_act 'gelu' is not supported"),
        (configure(architectures=["OPTForCausalLM"], activation_function="gelu"), "only 'relu' is"),
        (configure(vocab_size=300), "has shape .* where config.json means"),
        (configure(num_hidden_layers=None), "config.json lacks or misstates"),
        (configure(rope_parameters={"rope_type": "yarn"}), "rope type 'yarn' is not supported"),
        (lambda directory: (directory / "config.json").unlink(), "holds no config.json"),
        (lambda directory: (directory / "config.json").write_text("{"), "cannot be read as JSON"),
    ],
)
def test_a_broken_model_directory_is_described(
    break_it: Callable[[Path], None], says: str, copy: Path
) -> None:
    """Each damage and each unknown architecture ends as one line that says what is wrong."""
    break_it(copy)
    with pytest.raises(ModelError, match=says) as caught:
        load_model(copy, torch.float32)
    assert "\n" not in str(caught.value)
