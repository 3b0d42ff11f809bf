"""Reads the weights of a GGUF, dequantised to float32, by their Hugging Face names.

An unknown architecture, tensor or rope scaling is refused. A model that loads and answers slightly
wrong is worse than one that does not load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from weftline_engine.own.models.gguf_architecture import ARCHITECTURES, Architecture
from weftline_engine.own.models.gguf_config import FACTORS, config_of
from weftline_engine.own.models.gguf_header import GgufHeader, StoredTensor
from weftline_engine.own.models.gguf_metadata import Metadata
from weftline_engine.own.models.name import ModelUnavailable

# Types whose blocks the C kernels multiply, and those of other tensors in the same file.
QUANTISED = frozenset({"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"})
_PLAIN = frozenset({"F32", "F16", "BF16"})


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor's name in the GGUF and its shape.

    `heads` is their number if llama.cpp permuted the rows, and `offset` what it added to all
    numbers. It may be matrix `part` of `parts` that are stored as one tensor.
    """

    source: str
    shape: tuple[int, ...]
    heads: int | None = None
    offset: float = 0.0
    part: int = 0
    parts: int = 1

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the whole in the file."""
        return self.shape if self.parts == 1 else (self.parts, *self.shape)


def tensors_of(
    architecture: Architecture, config: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> dict[str, Tensor]:
    """Every tensor of the model by Hugging Face name, in the order to write them."""
    sizes = _sizes(config)
    embedding = (sizes["V"], sizes["C"])
    heads = {"Q": config["num_attention_heads"], "K": config["num_key_value_heads"]}
    biased = {
        name
        for group in architecture.biases
        if any(f"blk.0.{name}.bias" in stored for name in group)
        for name in group
    }
    permuted = {"attn_q": heads["Q"], "attn_k": heads["K"]} if architecture.permuted else {}
    found = {"model.embed_tokens.weight": Tensor("token_embd.weight", embedding)}
    for layer in range(config["num_hidden_layers"]):
        kind = config["layer_types"][layer] if architecture.layers else ""
        tensors = {**architecture.tensors, **architecture.layers.get(kind, {})}
        for source, (name, letters) in tensors.items():
            shape = tuple(sizes[letter] for letter in letters)
            offset = architecture.offset if len(shape) == 1 else 0.0
            here = f"blk.{layer}.{source}"
            if len(shape) == 3:
                found |= _matrices(f"model.layers.{layer}.{name}.weight", f"{here}.weight", shape)
                continue
            for part, width in (("weight", shape), ("bias", shape[:1])):
                if part == "weight" or source in biased:
                    found[f"model.layers.{layer}.{name}.{part}"] = Tensor(
                        f"{here}.{part}", width, permuted.get(source), offset
                    )
    stored_norm, norm = architecture.last
    found[norm] = Tensor(stored_norm, (sizes["C"],), offset=architecture.offset)
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = Tensor("output.weight", embedding)
    return found


def _matrices(name: str, source: str, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """The matrices of all experts, which a file holds as one tensor."""
    count, *one = shape
    return {
        name.replace("*", str(number)): Tensor(source, tuple(one), part=number, parts=count)
        for number in range(count)
    }


def _sizes(config: Mapping[str, Any]) -> dict[str, int]:
    """The dimensions by the letters of `gguf_architecture`."""
    size, mlp = config["head_dim"], config["intermediate_size"]
    query, key = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    return {
        "C": config["hidden_size"],
        "Q": query,
        "K": key,
        "H": size,
        "M": mlp,
        "S": query + 2 * key,
        "T": 2 * mlp,
        "V": config["vocab_size"],
        "E": config.get("num_experts", 0),
        "X": config.get("moe_intermediate_size", 0),
        "G": 3 * config["hidden_size"],
        "L": config.get("conv_L_cache", 0),
    }


class LlamaGguf:
    """An open GGUF file whose metadata and tensor list have been checked.

    Raises ModelUnavailable if the file is truncated, not a GGUF, or an unsupported model.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._header = GgufHeader(path)
            self._stored = self._header.tensors
            self.metadata = Metadata(self._header.values)
            self.architecture = self._known()
            self.config = config_of(self.metadata, self.architecture, self._header)
        except ModelUnavailable as refused:
            raise ModelUnavailable(f"{path.name}: {refused}") from None
        self.tensors = tensors_of(self.architecture, self.config, self._stored)
        self._check_tensors()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor by Hugging Face name, in the order of `weights`."""
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    @property
    def computed_directly(self) -> bool:
        """Whether the file has quantised tensors, and only those of types that are multiplied as
        they are."""
        kinds = {self._stored[one.source].kind.name for one in self.tensors.values()}
        return bool(kinds & QUANTISED) and kinds <= QUANTISED | _PLAIN

    @property
    def not_computed(self) -> tuple[str, str] | None:
        """The first tensor of a type that is quantised and not multiplied as it is, and the type.
        None if there is no such tensor."""
        for one in self.tensors.values():
            kind = self._stored[one.source].kind.name
            if kind not in QUANTISED | _PLAIN:
                return one.source, kind
        return None

    def kinds(self) -> dict[str, int]:
        """The bytes of each quantised type, the most first."""
        found: dict[str, int] = {}
        for stored in self._stored.values():
            name = stored.kind.name
            if name in QUANTISED:
                found[name] = found.get(name, 0) + stored.nbytes
        return dict(sorted(found.items(), key=lambda one: -one[1]))

    def index(self) -> dict[str, dict[str, Any]]:
        """Type, shape and offset of every tensor. Besides, its heads if its rows are permuted, and
        what was added to its numbers."""
        found: dict[str, dict[str, Any]] = {}
        for name, tensor in self.tensors.items():
            stored = self._stored[tensor.source]
            found[name] = {
                "type": int(stored.kind),
                "shape": list(tensor.shape),
                "offset": stored.offset + tensor.part * (stored.nbytes // tensor.parts),
            }
            if tensor.heads:
                found[name]["heads"] = tensor.heads
            if tensor.offset:
                found[name]["added"] = tensor.offset
        return found

    def weights(self) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """Yield every tensor's Hugging Face name and its values in Hugging Face layout."""
        for name, tensor in self.tensors.items():
            stored = self._stored[tensor.source]
            values = self._header.values_of(stored, tensor.part, tensor.parts)
            if not np.isfinite(values).all():
                raise ModelUnavailable(
                    f"{self.path.name} has weights in {name} that are not finite"
                )
            values = unpermute(values, tensor.heads) if tensor.heads else values
            yield name, values - np.float32(tensor.offset)

    def _known(self) -> Architecture:
        found = self.metadata.architecture
        if found == "gpt-oss":
            raise ModelUnavailable(
                "architecture 'gpt-oss' is not computed here, because of its attention sinks and "
                "MXFP4 experts: serve the file with --engine llamacpp"
            )
        if found not in ARCHITECTURES:
            raise ModelUnavailable(
                f"architecture {found[:40]!r} is not read from a GGUF; {', '.join(ARCHITECTURES)} "
                "are; --engine llamacpp serves the others"
            )
        return ARCHITECTURES[found]

    def _check_tensors(self) -> None:
        wanted = {tensor.source: tensor for tensor in self.tensors.values()}
        stored_names = self._stored.keys() - set(FACTORS)
        if wanted.keys() != stored_names:
            odd = sorted(wanted.keys() ^ stored_names)
            verb = "has" if odd[0] in self._stored else "lacks"
            raise ModelUnavailable(
                f"{self.path.name} {verb} the tensor {odd[0][:60]}, unlike other models of "
                f"architecture {self.metadata.architecture}: use its Hugging Face directory"
            )
        for name in wanted:
            stored = self._stored[name]
            rows = self.config["vocab_size"]
            if name == "token_embd.weight" and stored.shape[:1] != (rows,):
                raise ModelUnavailable(
                    f"{self.path.name} has a tokenizer of {rows} tokens, which does not fit its "
                    f"{name} of shape {stored.shape}: fetch it again"
                )
            shape = wanted[name].stored_shape
            if stored.shape != shape:
                raise ModelUnavailable(
                    f"{self.path.name}: {name} has shape {stored.shape}, not {shape}"
                )
            if not _can_dequantise(stored.kind):
                raise ModelUnavailable(
                    f"{self.path.name} stores {name} as {stored.kind.name}, which cannot be "
                    "dequantised here: take another quantisation of the model"
                )


def metadata_of(path: Path) -> Metadata:
    """The metadata of a GGUF file of any architecture. Raises ModelUnavailable."""
    try:
        return Metadata(GgufHeader(path).values)
    except ModelUnavailable as refused:
        raise ModelUnavailable(f"{path.name}: {refused}") from None


def unpermute(values: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Undo llama.cpp's row order of a query or key projection, [heads * head_dim, hidden], or bias.

    Rotary embedding rotates pairs of rows. llama.cpp stores the rows of a pair side by side
    (0, h/2, 1, h/2 + 1, ...). Hugging Face stores the first rows of all pairs of a head, then the
    second rows.
    """
    rows = len(values)
    pairs = values.reshape(heads, rows // heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _can_dequantise(kind: gguf.GGMLQuantizationType) -> bool:
    plain = (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)
    if kind in plain:
        return True
    try:
        gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), kind)
    except NotImplementedError:
        return False
    return True
