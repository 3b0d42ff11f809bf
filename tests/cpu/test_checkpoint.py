"""A model directory that cannot be run gives one sentence that says why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.variants import load_model
from weftline_engine.own.embedded.model.checkpoint import Checkpoint
from weftline_engine.own.embedded.model.config import ModelError


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


def values_in(checkpoint: Checkpoint, name: str, rows: int, columns: int = 0) -> Any:
    """A vector or a matrix."""
    if columns:
        return checkpoint.matrix(name, (rows, columns)).values()
    return checkpoint.vector(name, rows)


def test_shards_read_like_one_file(copy: Path, tiny_directory: Path) -> None:
    """A checkpoint that is cut into several files has the same tensors."""
    expected = load_file(tiny_directory / "model.safetensors")
    shard(copy)
    checkpoint = Checkpoint(copy)
    for name, tensor in expected.items():
        assert torch.equal(torch.from_numpy(values_in(checkpoint, name, *tensor.shape)), tensor)


def test_tensors_stay_on_disk_until_they_are_used(tmp_path: Path) -> None:
    """64 MiB of weights are read and summed. They are pages of the file, and no memory of the
    process: a model may be larger than what is free.
    """
    size = 1 << 25
    save_file({name: torch.ones(2, size // 4, dtype=torch.bfloat16) for name in "ab"},
              tmp_path / "model.safetensors")  # fmt: skip
    heard: list[tuple[int, int]] = []
    before = anonymous_bytes()
    checkpoint = Checkpoint(tmp_path, lambda done, total: heard.append((done, total)))
    found = [checkpoint.matrix(name, (2, size // 4)).rows for name in "ab"]
    assert [int(one.view(np.int16).max()) for one in found] == [0x3F80, 0x3F80]
    assert heard == [(size, 2 * size), (2 * size, 2 * size)]
    assert anonymous_bytes() - before < size // 2


def anonymous_bytes() -> int:
    """The memory of this process that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(one.split()[1]) << 10 for one in lines if one.startswith("RssAnon:"))


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


def write_integers(directory: Path) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int32)
    save_file(tensors, path)


def configure(**changes: Any) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


GRANITE_4: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "shared_intermediate_size": 96,
}
LONG = {"rope_type": "longrope", "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (remove_shard, "shard model-00002-of-00002.safetensors of .* is missing"),
        (truncate, "is truncated or no safetensors file .* fetch the model again"),
        (truncate_header, "is truncated or no safetensors file .* fetch the model again"),
        (write_foreign, "is truncated or no safetensors file .* fetch the model again"),
        (
            write_integers,
            "tensor model.norm.weight in model.safetensors is I32; only floats of 16 bits and more "
            "are read, and --engine vllm reads other types",
        ),
        (remove_weights, "holds no .*safetensors file"),
        (remove_tensor, "hold no tensor model.norm.weight"),
        (configure(architectures=["MambaForCausalLM"]), "MambaForCausalLM is not supported"),
        (configure(hidden_act="gelu"), "hidden_act 'gelu' is not supported"),
        (
            configure(architectures=["OPTForCausalLM"]),
            "OPTForCausalLM is not supported: ",
        ),
        (configure(vocab_size=300), "has shape .* where config.json means"),
        (configure(num_hidden_layers=None), "config.json lacks or misstates"),
        (configure(rope_parameters={"rope_type": "dynamic"}), "rope_type 'dynamic' is not supp"),
        (configure(rope_parameters={"rope_type": "yarn"}), "lacks or misstates"),
        (configure(partial_rotary_factor=0.2), "partial_rotary_factor 0.2 turns 3 of 16"),
        (
            configure(rope_scaling={**LONG, "long_factor": [1.0]}, rope_parameters=None),
            "long_factor has 1 numbers where 8 pairs are turned",
        ),
        (
            configure(quantization_config={"quant_method": "awq", "bits": 4}),
            "quantization_config awq of 4 bits is not supported in a LlamaForCausalLM; serve it "
            "with --engine vllm",
        ),
        (
            configure(
                quantization_config={"quant_method": "fp8"}, architectures=["Qwen3ForCausalLM"]
            ),
            "quantization_config fp8 is not supported in a Qwen3ForCausalLM",
        ),
        (configure(layer_types=["mamba"] * 3), "layer_types 'mamba' is not supported in a Llama"),
        (configure(layer_types=["full_attention"]), "lacks or misstates"),
        (configure(**GRANITE_4), "layer_types 'mamba' is not"),
        (configure(**GRANITE_4, num_local_experts=8), "num_local_experts 8 is not supported"),
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
