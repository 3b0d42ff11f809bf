"""Writes a GGUF file of random weights, for a shape and a type of weights."""

from __future__ import annotations

from itertools import chain, islice, product
from pathlib import Path

import gguf
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

from tests.random_models import RandomBlocks, config_of
from weftline_engine.own.embedded.model.config import LlamaConfig
from weftline_engine.own.models.gguf_architecture import ARCHITECTURES
from weftline_engine.own.models.llama_gguf import tensors_of
from weftline_kernels.cpu.blocks import WeightType


def write_gguf(path: Path, shape: LlamaConfig, kind: str, *, words: bool = False) -> Path:
    """Write the weights that `RandomBlocks` makes of a type. With `words` the file has a tokenizer,
    which a server needs."""
    assert shape.experts is None
    [architecture] = (key for key, one in ARCHITECTURES.items() if one.name == shape.architecture)
    config = config_of(shape, {"vocab_size": shape.vocabulary, **dict.fromkeys(_IDS, 0)})
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context_limit)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.mlp)
    writer.add_head_count(shape.heads)
    kinds = [shape.kind(layer) for layer in range(shape.layers)]
    if shape.taps:  # a layer without heads of keys has a convolution
        writer.add_head_count_kv([0 if kind.taps else shape.kv_heads for kind in kinds])
        writer.add_shortconv_l_cache(shape.taps)
    else:
        writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
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
        if blocks.kind == WeightType.BF16:
            writer.add_tensor(tensor.source, blocks.values().astype(np.float32))
            continue
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
