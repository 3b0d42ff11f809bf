"""llama.cpp on the random weights of a shape: a GGUF file of them, and its own benchmark."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from itertools import chain, islice, product
from pathlib import Path

import gguf
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

from bench.harness.shape import config_of
from bench.micro.random_models import RandomBlocks
from weftline_engine.embedded.model.config import HeadNorm, LlamaConfig
from weftline_engine.models.gguf_architecture import ARCHITECTURES
from weftline_engine.models.llama_gguf import tensors_of


def write_gguf(path: Path, shape: LlamaConfig, kind: str, *, words: bool = False) -> Path:
    """Write the weights that `RandomBlocks` makes of a type. With `words` the file has a tokenizer,
    which a server needs."""
    assert shape.experts is None and shape.kinds[0].rope is not None
    architecture = "qwen3" if shape.norms.heads is HeadNorm.HEAD else "llama"
    config = config_of(shape, {"vocab_size": shape.vocabulary, **dict.fromkeys(_IDS, 0)})
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context_limit)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.mlp)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_rope_freq_base(shape.kinds[0].rope.theta)
    writer.add_rope_dimension_count(shape.head_size)
    if words:
        _add_tokenizer(writer, shape.vocabulary)
    else:
        writer.add_vocab_size(shape.vocabulary)
        writer.add_tokenizer_model("none")
    weights = RandomBlocks(kind, shape.layers)
    for name, tensor in tensors_of(ARCHITECTURES[architecture], config, {}).items():
        if len(tensor.shape) == 1:
            writer.add_tensor(tensor.source, np.ones(tensor.shape, np.float32))
            continue
        rows, columns = tensor.shape
        blocks = weights.matrix(name, (rows, columns))
        raw = gguf.GGMLQuantizationType(int(blocks.kind))
        writer.add_tensor(tensor.source, blocks.rows, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


_IDS = ("bos_token_id", "eos_token_id")


def _add_tokenizer(writer: gguf.GGUFWriter, size: int) -> None:
    """The 256 bytes, as many words of two and three bytes as there is room for, and an end."""
    marks = sorted(ByteLevel.alphabet())
    pairs = list(product(marks, marks))
    longer = ((a + b, c) for (a, b), c in product(pairs, marks))
    merges = list(islice(chain(pairs, longer), size - 1 - len(marks)))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*marks, *(a + b for a, b in merges), "<|end|>"])
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_token_types([*[normal] * (size - 1), control])
    writer.add_token_merges([f"{a} {b}" for a, b in merges])
    writer.add_eos_token_id(size - 1)


def decoding(
    program: Path, model: Path, threads: int, streams: Sequence[int], start: int, tokens: int
) -> dict[str, float]:
    """Tokens a second of streams that decode `tokens` tokens behind `start` equal others."""
    context = max(streams) * (start + tokens)
    lines = _run(program, model, threads, [start], tokens, streams, context, "-pps")
    return {f"decode {int(one['pl'])}": float(one["speed_tg"]) for one in lines}


def prompting(program: Path, model: Path, threads: int, prompts: Sequence[int]) -> dict[str, float]:
    """Tokens a second of prompts."""
    lines = _run(program, model, threads, prompts, 1, [1], max(prompts) + 1)
    return {f"prompt {int(one['pp'])}": float(one["speed_pp"]) for one in lines}


def _run(
    program: Path,
    model: Path,
    threads: int,
    prompts: Sequence[int],
    tokens: int,
    streams: Sequence[int],
    context: int,
    *flags: str,
) -> list[dict[str, float]]:
    """The lines of a run of llama-batched-bench."""
    options = {
        "-m": model,
        "-t": threads,
        "-c": context,
        "-npp": ",".join(map(str, prompts)),
        "-ntg": tokens,
        "-npl": ",".join(map(str, streams)),
        "--output-format": "jsonl",
    }
    words = [str(word) for pair in options.items() for word in pair]
    done = subprocess.run([program, *words, *flags], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"{program} failed: {done.stderr[-500:]}")
    return [json.loads(line) for line in lines]
