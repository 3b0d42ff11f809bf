"""Reads the weights of a Llama-family GGUF, dequantised to float32, by their Hugging Face names.

An unknown architecture, tensor or rope scaling is refused. A model that loads and answers slightly
wrong is worse than one that does not load.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from weftline_engine.models.name import ModelUnavailable

# GGUFReader checks little. These are the errors that it raises for damaged files.
_MALFORMED = (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError, OSError)

_MAX_DIMENSION = 1 << 20


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor's name in the GGUF, its shape, and the number of heads if llama.cpp permuted it."""

    source: str
    shape: tuple[int, ...]
    heads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """The dimensions of a Llama model, from the GGUF's metadata."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor of the model by Hugging Face name, in the order to write them."""
        found = {"model.embed_tokens.weight": Tensor("token_embd.weight", self._embedding)}
        for layer in range(self.layers):
            for name, (source, shape, heads) in self._layer().items():
                found[f"model.layers.{layer}.{name}.weight"] = Tensor(
                    f"blk.{layer}.{source}.weight", shape, heads
                )
        found["model.norm.weight"] = Tensor("output_norm.weight", (self.hidden,))
        if not self.tied:
            found["lm_head.weight"] = Tensor("output.weight", self._embedding)
        return found

    @property
    def _embedding(self) -> tuple[int, int]:
        return (self.vocabulary, self.hidden)

    def _layer(self) -> dict[str, tuple[str, tuple[int, ...], int | None]]:
        hidden, wide = self.hidden, self.intermediate
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "input_layernorm": ("attn_norm", (hidden,), None),
            "self_attn.q_proj": ("attn_q", (queries, hidden), self.heads),
            "self_attn.k_proj": ("attn_k", (keys, hidden), self.kv_heads),
            "self_attn.v_proj": ("attn_v", (keys, hidden), None),
            "self_attn.o_proj": ("attn_output", (hidden, queries), None),
            "post_attention_layernorm": ("ffn_norm", (hidden,), None),
            "mlp.gate_proj": ("ffn_gate", (wide, hidden), None),
            "mlp.up_proj": ("ffn_up", (wide, hidden), None),
            "mlp.down_proj": ("ffn_down", (hidden, wide), None),
        }


class LlamaGguf:
    """An open GGUF file whose metadata and tensor list have been checked.

    Raises ModelUnavailable if the file is truncated, not a GGUF, or an unsupported model.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelUnavailable(f"{path.name} is not a GGUF file")
        try:
            self._reader = _Reader(path)
            self._stored = {tensor.name: tensor for tensor in self._reader.tensors}
            self.metadata = _Metadata(self._reader)
            self._check_kind()
            self.dimensions = self._dimensions()
        except _MALFORMED as error:
            raise ModelUnavailable(
                f"{path.name} is a truncated or damaged GGUF file: fetch it again"
            ) from error
        self.tensors = self.dimensions.tensors()
        self._check_tensors()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor by Hugging Face name, in the order of `weights`."""
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    def weights(self) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """Yield every tensor's Hugging Face name and its values in Hugging Face layout."""
        for name, tensor in self.tensors.items():
            stored = self._stored[tensor.source]
            values = gguf.dequantize(stored.data, stored.tensor_type).reshape(tensor.shape)
            if not np.isfinite(values).all():
                raise ModelUnavailable(
                    f"{self.path.name} has weights in {name} that are not finite"
                )
            yield name, unpermute(values, tensor.heads) if tensor.heads else values

    def _check_kind(self) -> None:
        architecture = self.metadata.text("general.architecture")
        if architecture != "llama":
            raise ModelUnavailable(
                f"{self.path.name} is of architecture {architecture[:40]!r}, and only llama can be "
                "read from a GGUF: use its Hugging Face directory"
            )
        scaling = self.metadata.text("llama.rope.scaling.type", "none")
        if scaling != "none":
            raise ModelUnavailable(
                f"{self.path.name} scales its rotary embedding ({scaling[:40]}), which cannot be "
                "read from a GGUF: use the model's Hugging Face directory"
            )

    def _dimensions(self) -> Dimensions:
        number = self.metadata.number
        hidden, heads = number("llama.embedding_length"), number("llama.attention.head_count")
        head_dim = number("llama.attention.key_length", hidden // heads)
        if number("llama.rope.dimension_count", head_dim) != head_dim or head_dim % 2:
            raise ModelUnavailable(
                f"{self.path.name} rotates only a part of each head, which cannot be read from a "
                "GGUF: use its Hugging Face directory"
            )
        return Dimensions(
            layers=number("llama.block_count"),
            hidden=hidden,
            intermediate=number("llama.feed_forward_length"),
            heads=heads,
            kv_heads=number("llama.attention.head_count_kv", heads),
            head_dim=head_dim,
            vocabulary=self.metadata.length("tokenizer.ggml.tokens"),
            tied="output.weight" not in self._stored,
        )

    def _check_tensors(self) -> None:
        wanted = {tensor.source: tensor for tensor in self.tensors.values()}
        if wanted.keys() != self._stored.keys():
            odd = sorted(wanted.keys() ^ self._stored.keys())
            verb = "has" if odd[0] in self._stored else "lacks"
            raise ModelUnavailable(
                f"{self.path.name} {verb} the tensor {odd[0][:60]}, unlike a plain Llama: use the "
                "model's Hugging Face directory"
            )
        for name, stored in self._stored.items():
            # GGUF lists the fastest-varying dimension first.
            shape = tuple(int(size) for size in reversed(stored.shape))
            if shape != wanted[name].shape:
                raise ModelUnavailable(
                    f"{self.path.name}: {name} has shape {shape}, not {wanted[name].shape}"
                )
            if not _can_dequantise(stored.tensor_type):
                raise ModelUnavailable(
                    f"{self.path.name} stores {name} as {stored.tensor_type.name}, which cannot be "
                    "dequantised here: take another quantisation of the model"
                )


class _Reader(gguf.GGUFReader):  # type: ignore[misc]  # gguf has no types
    """A GGUFReader that slices the mapped file as a plain array.

    It cuts slices for each word of the vocabulary. Those of a memmap take three times as long:
    3 s instead of 1 s for 49,152 words.
    """

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The bytes of the file."""
        return self._bytes

    @data.setter
    def data(self, mapped: npt.NDArray[np.uint8]) -> None:
        self._bytes = np.asarray(mapped)


class _Metadata:
    """The key-value pairs of a GGUF, with checked types."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise ValueError(f"{key} is not a string")
        return value

    def number(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        if not isinstance(value, int) or not 0 < value <= _MAX_DIMENSION:
            raise ValueError(f"{key} is not a size")
        return value

    def length(self, key: str) -> int:
        field = self._reader.get_field(key)
        if field is None:
            raise KeyError(key)
        return len(field.data)

    def _value(self, key: str, default: object) -> object:
        field = self._reader.get_field(key)
        if field is not None:
            return field.contents()
        if default is None:
            raise KeyError(key)
        return default


def unpermute(values: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Undo llama.cpp's row order of a query or key projection, [heads * head_dim, hidden].

    Rotary embedding rotates pairs of rows. llama.cpp stores the rows of a pair side by side
    (0, h/2, 1, h/2 + 1, ...). Hugging Face stores the first rows of all pairs of a head, then the
    second rows.
    """
    rows, columns = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _can_dequantise(kind: gguf.GGMLQuantizationType) -> bool:
    plain = (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)
    if kind in plain:
        return True
    try:
        gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), kind)
    except NotImplementedError:
        return False
    return True
