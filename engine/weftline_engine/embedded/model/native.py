"""The decoder in C (weftline_kernels.cpu) for bfloat16 and int8, with the interface of a `Model`.

Activations stay float32 from the embedding to the logits, so it is more exact than a decoder that
uses bfloat16 throughout. T = tokens, R = rows whose logits are wanted, K = KV heads, P = blocks,
H = head size, F = H / 2, X = rows of a weight, Y = its columns.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weftline_engine.embedded.model.base import CPU, StepInput, empty_cache
from weftline_engine.embedded.model.checkpoint import Checkpoint
from weftline_engine.embedded.model.config import (
    Activation,
    Biases,
    HeadNorm,
    LayerKind,
    LlamaConfig,
    Norms,
    Scales,
)
from weftline_engine.embedded.model.layer_weights import LayerWeights, norm_weight
from weftline_engine.embedded.model.rope import frequencies
from weftline_kernels.cpu.items import Flat, flatten, queries_of_task
from weftline_kernels.cpu.layout import interleave, pack, pack_int8, rounded_stride, stride
from weftline_kernels.work_list import MIN_BLOCKS_SAVED

BLOCK = 16  # fixed in decoder.c
_MOST_SIZE = 256  # of a head, in step.h

Pointer = ctypes.c_void_p


def _struct(name: str, fields: list[tuple[str, Any]]) -> Any:
    return type(name, (ctypes.Structure,), {"_fields_": fields})


_LAYER = ("attention_norm", "mlp_norm", "qkv_bias", "q_norm", "k_norm")
_MATRICES = ("qkv", "out", "gate_up", "down")
_SIZES = ("layers", "hidden", "heads", "kv_heads", "head_size", "mlp", "vocabulary")
_ARRAYS = ("ids", "slots", "wanted", "cosine", "sine", "item", "block", "query", "visible")
_SCRATCH = ("x", "qkv", "normed", "attended", "gated", "partial", "top", "weight", "rounded")

_CWeight = _struct("_CWeight", [("panels", Pointer), ("scale", Pointer)])
_CLayer = _struct(
    "_CLayer",
    [*((name, Pointer) for name in _LAYER), *((name, _CWeight) for name in _MATRICES)],
)
_CModel = _struct(
    "_CModel",
    [
        *((name, ctypes.c_int32) for name in _SIZES),
        ("eps", ctypes.c_float),
        *((name, Pointer) for name in ("embedding", "norm")),
        ("head", _CWeight),
        ("layer", ctypes.POINTER(_CLayer)),
    ],
)
_CStep = _struct(
    "_CStep",
    [
        *((name, ctypes.c_int32) for name in ("tokens", "rows", "items", "threads")),
        ("blocks", ctypes.c_int64),
        *((name, Pointer) for name in (*_ARRAYS, "part_at", "part", "cache", *_SCRATCH, "logits")),
    ],
)


def runs(config: LlamaConfig, block_size: int) -> bool:
    """Whether the C decoder can run this model."""
    size, first = config.head_size, config.kind(0)
    plain = (
        set(config.kinds) == {LayerKind(first.rope)}
        and first.rope is not None
        and (first.rope.components, first.rope.amplitude) == (None, 1.0)
        and config.norms in (Norms(), Norms(heads=HeadNorm.HEAD))
        and config.biases in (Biases(), Biases(qkv=True))
        and (config.scales, config.activation) == (Scales(), Activation.SILU)
    )
    fits = size % 16 == 0 and size <= _MOST_SIZE and config.hidden % 2 == 0
    return plain and fits and block_size == BLOCK


class NativeDecoder:
    """The packed weights and the config of a model, and `forward`. The caller owns the KV cache."""

    device = CPU
    min_blocks_saved = MIN_BLOCKS_SAVED

    def __init__(
        self,
        config: LlamaConfig,
        weights: Checkpoint,
        library: ctypes.CDLL,
        *,
        int8: bool = False,
    ) -> None:
        self.config = config
        self.int8 = int8
        self.threads = torch.get_num_threads()
        self._forward = library.weftline_forward
        self._panel = int(library.weftline_panel())  # columns
        rope = config.kind(0).rope
        assert rope is not None, "`runs` refuses a model without a rope"
        self._frequencies_F = frequencies(rope, config.head_size)
        self._kept: list[Tensor] = []  # tensors to which the C structs point
        self._scratch: dict[str, npt.NDArray[np.float32]] = {}
        hidden, vocabulary = config.hidden, config.vocabulary
        embedding = weights.read("model.embed_tokens.weight", (vocabulary, hidden))
        tied = config.tied or "lm_head.weight" not in weights
        head = embedding if tied else weights.read("lm_head.weight", (vocabulary, hidden))
        self._layers = (_CLayer * config.layers)(
            *(self._layer(LayerWeights(weights, config, i)) for i in range(config.layers))
        )
        self._model = _CModel(
            **{name: getattr(config, name) for name in _SIZES},
            eps=config.norm_eps,
            # A copy, so that no tensor keeps the mapped file, which is as large as the packed
            # weights.
            embedding=self._keep(embedding.to(torch.bfloat16, copy=True)),
            norm=self._vector(norm_weight(weights, config, "model.norm", hidden)),
            head=self._weight(head),
            layer=self._layers,
        )

    def _layer(self, found: LayerWeights) -> Any:
        norms, bias_X, head_norms = self.config.norms, found.qkv_bias(), found.head_norms()
        layer = _CLayer(
            attention_norm=self._vector(found.norm(norms.attention)),
            mlp_norm=self._vector(found.norm(norms.mlp)),
            qkv_bias=self._vector(bias_X),
            qkv=self._weight(torch.cat(found.qkv())),
            out=self._weight(found.out()),
            gate_up=self._weight(interleave(*found.gate_up(), self._panel // 2)),
            down=self._weight(found.down()),
        )
        if head_norms is not None:
            layer.q_norm, layer.k_norm = map(self._vector, head_norms)
        return layer

    def _vector(self, values_X: Tensor | None) -> int | None:
        """The address of a vector in float32, padded to whole panels."""
        if values_X is None:
            return None
        padding = -len(values_X) % self._panel
        return self._keep(torch.nn.functional.pad(values_X.float(), (0, padding)))

    def _weight(self, weight_XY: Tensor) -> Any:
        """The weights of a product in panels."""
        if not self.int8:
            return _CWeight(self._keep(pack(weight_XY, self._panel)), None)
        panels, scales = pack_int8(weight_XY, self._panel)
        return _CWeight(self._keep(panels), self._keep(scales))

    def _keep(self, tensor: Tensor) -> int:
        tensor = tensor.contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()

    def forward(self, step: StepInput, cache_L2KPX: Tensor) -> Tensor:
        """Compute a step: fills the tokens' KV slots and returns logits (R, V) in float32."""
        config = self.config
        tokens, rows = len(step.tokens_T), len(step.rows_R)
        angles_TF = step.positions_T.to(torch.float32)[:, None] * self._frequencies_F[None, :]
        cosine_TF, sine_TF = angles_TF.cos(), angles_TF.sin()
        queries = queries_of_task(tokens, config.kv_heads, self.threads)
        flat: Flat = flatten(step.work, queries=queries)
        logits_RV = torch.empty(rows, config.vocabulary)
        heads = config.heads * len(flat.query)
        inputs = {
            "ids": step.tokens_T,
            "slots": step.slots_T,
            "wanted": step.rows_R,
            "cosine": cosine_TF,
            "sine": sine_TF,
            "cache": cache_L2KPX,
            "logits": logits_RV,
        }
        self._forward(
            ctypes.byref(self._model),
            ctypes.byref(
                _CStep(
                    tokens=tokens,
                    rows=rows,
                    items=len(flat.item),
                    threads=self.threads,
                    blocks=cache_L2KPX.shape[3],
                    **{name: tensor.data_ptr() for name, tensor in inputs.items()},
                    **{name: array.ctypes.data for name, array in flat._asdict().items()},
                    x=self._scratch_for("x", tokens * config.hidden),
                    normed=self._scratch_for("normed", max(tokens, rows) * stride(config.hidden)),
                    qkv=self._scratch_for(
                        "qkv", tokens * (config.heads + 2 * config.kv_heads) * config.head_size
                    ),
                    attended=self._scratch_for(
                        "attended", tokens * stride(config.heads * config.head_size)
                    ),
                    gated=self._scratch_for("gated", tokens * stride(config.mlp)),
                    partial=self._scratch_for("partial", heads * config.head_size),
                    top=self._scratch_for("top", heads),
                    weight=self._scratch_for("weight", heads),
                    rounded=self._rounded(max(tokens, rows)),
                )
            ),
        )
        return logits_RV

    def _rounded(self, rows: int) -> int | None:
        """The address of scratch memory for the inputs of a product in int8."""
        if not self.int8:
            return None
        config = self.config
        widest = max(config.hidden, config.mlp, config.heads * config.head_size)
        return self._scratch_for("rounded", rows * rounded_stride(widest) // 4)

    def _scratch_for(self, name: str, count: int) -> int:
        """The address of scratch memory for `count` numbers; it is kept for the next step."""
        if name not in self._scratch or len(self._scratch[name]) < count:
            # Zeros, because a row's padding is multiplied by padded weights (0) and must be finite.
            self._scratch[name] = np.zeros(count, np.float32)
        return self._scratch[name].ctypes.data

    def new_cache(self, blocks: int, block_size: int) -> Tensor:
        """An empty KV cache (L, 2, K, P, H * S); keys lie transposed in their block."""
        config = self.config
        shape = (config.layers, 2, config.kv_heads, blocks, config.head_size * block_size)
        return empty_cache(shape, torch.bfloat16)
