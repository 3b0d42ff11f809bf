"""The decoder in C (weftline_kernels.cpu) for bfloat16 and quantised weights, as a `Model`.

Activations stay float32 from the embedding to the logits, so it is more exact than a decoder that
uses bfloat16 throughout. T = tokens, R = rows whose logits are wanted, K = KV heads, P = blocks,
H = head size, F = H / 2, X = rows of a weight, Y = its columns.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from weftline_engine.own.embedded.host_device import HOST, Values
from weftline_engine.own.embedded.model.base import StepInput, empty_cache
from weftline_engine.own.embedded.model.checkpoint import Checkpoint
from weftline_engine.own.embedded.model.config import Activation, HeadNorm, LlamaConfig
from weftline_engine.own.embedded.model.layer_weights import LayerWeights, norm_weight
from weftline_engine.own.embedded.model.matrix import Matrix
from weftline_engine.own.embedded.model.packer import CWeight, Packer
from weftline_engine.own.embedded.model.rope_angles import frequencies
from weftline_kernels.cpu.blocks import WeightType, narrow
from weftline_kernels.cpu.layout import interleave, rounded_rows, scratch_row, stride
from weftline_kernels.cpu.panels import Panels
from weftline_kernels.cpu.work_arrays import Flat, flatten, queries_of_task
from weftline_kernels.work_list import MIN_BLOCKS_SAVED

BLOCK = 16  # fixed in decoder.c
_MOST_SIZE = 256  # of a head, in step.h
_MOST_EXPERTS = 1024  # in experts.h
_NONE = np.empty(0, np.int64)

Pointer = ctypes.c_void_p


def _struct(name: str, fields: list[tuple[str, Any]]) -> Any:
    return type(name, (ctypes.Structure,), {"_fields_": fields})


_NORMS = ("attention_norm", "attended_norm", "mlp_norm", "mlp_out_norm", "q_norm", "k_norm")
_BIASES = ("qkv_bias", "out_bias", "gate_up_bias", "down_bias")
_MATRICES = ("qkv", "out", "gate_up", "down")
_SIZES = ("layers", "hidden", "heads", "kv_heads", "head_size", "mlp", "vocabulary")
_KINDS = ("turned", "gelu", "row_norms", "experts", "used", "expert_mlp", "normalised", "taps")
_SCALES = ("eps", "embedding_scale", "residual_scale", "score_scale", "logit_scale")
_CAPS = ("score_cap", "logit_cap")
_ARRAYS = ("ids", "positions", "slots", "wanted", "cosine", "sine", "item", "block", "query")
_PARTS = ("visible", "part_at", "part", "before", "cache")
_ROWS = ("x", "qkv", "added", "normed", "attended", "gated")
_SCRATCH = ("partial", "top", "weight", "rounded")
_ROUTED = ("expert", "place", "owner", "first", "share", "made", "routed")

_CLayer = _struct(
    "_CLayer",
    [
        *((name, Pointer) for name in (*_NORMS, *_BIASES)),
        *((name, ctypes.c_int32) for name in ("rope", "window", "cached")),
        *((name, CWeight) for name in _MATRICES),
        ("taps", Pointer),
        ("router", Pointer),
        ("expert_weights", ctypes.POINTER(CWeight)),
    ],
)
_CModel = _struct(
    "_CModel",
    [
        *((name, ctypes.c_int32) for name in (*_SIZES, *_KINDS)),
        *((name, ctypes.c_float) for name in (*_SCALES, *_CAPS)),
        ("embedding_type", ctypes.c_int32),
        *((name, Pointer) for name in ("embedding", "norm")),
        ("head", CWeight),
        ("layer", ctypes.POINTER(_CLayer)),
    ],
)
_CStep = _struct(
    "_CStep",
    [
        *((name, ctypes.c_int32) for name in ("tokens", "rows", "items", "threads")),
        ("blocks", ctypes.c_int64),
        *((name, Pointer) for name in (*_ARRAYS, *_PARTS, *_ROWS, *_SCRATCH, "logits", *_ROUTED)),
    ],
)


def runs(config: LlamaConfig, block_size: int) -> bool:
    """Whether the C decoder can run this model."""
    size = config.head_size
    fits = size % 16 == 0 and size <= _MOST_SIZE and config.hidden % 2 == 0
    alike = len(_turned(config)) == 1
    few = config.experts is None or config.experts.count <= _MOST_EXPERTS
    return fits and alike and few and block_size == BLOCK


def _turned(config: LlamaConfig) -> set[int]:
    """How many components of a head each rope turns; a model without a rope turns none."""
    ropes = [kind.rope for kind in config.kinds if kind.rope is not None]
    return {rope.components or config.head_size for rope in ropes} or {0}


def _described(config: LlamaConfig) -> dict[str, float]:
    """What decoder.c is told of the model besides its sizes and weights."""
    scales, experts = config.scales, config.experts
    (turned,) = _turned(config)
    return {
        "experts": 0 if experts is None else experts.count,
        "used": 0 if experts is None else experts.used,
        "expert_mlp": 0 if experts is None else experts.mlp,
        "normalised": experts is not None and experts.normalised,
        "taps": config.taps,
        "turned": turned,
        "gelu": config.activation is Activation.GELU_TANH,
        "row_norms": config.norms.heads is HeadNorm.ROW,
        "eps": config.norm_eps,
        "embedding_scale": scales.embedding,
        "residual_scale": scales.residual,
        "score_scale": config.score_scale,
        "logit_scale": scales.logits,
        "score_cap": scales.score_cap or 0.0,
        "logit_cap": scales.logit_cap or 0.0,
    }


class NativeDecoder:
    """The packed weights and the config of a model, and `forward`. The caller owns the KV cache.

    `kernels` is the key of the compiled code.
    """

    device = HOST
    precision = "bfloat16"
    min_blocks_saved = MIN_BLOCKS_SAVED
    overlaps = False

    def __init__(
        self,
        config: LlamaConfig,
        weights: Checkpoint,
        library: ctypes.CDLL,
        *,
        quantise: WeightType | None = None,
        kernels: str = "",
        threads: int = 1,
    ) -> None:
        self.config = config
        self.kernels = kernels
        self.threads = threads
        self._forward = library.weftline_forward
        self._packer = Packer(Panels(library, self.threads), quantise)
        self._panel = self._packer.panels.columns
        ropes = {config.kind(i).rope for i in range(config.layers)} - {None}
        self._ropes = [rope for rope in ropes if rope is not None]
        self._frequencies = [frequencies(rope, config.head_size) for rope in self._ropes]
        self._scratch: dict[str, npt.NDArray[np.float32]] = {}
        self._experts: list[Any] = []  # what layers point to
        hidden, vocabulary = config.hidden, config.vocabulary
        embedding = self._packer.quantised(
            weights.matrix("model.embed_tokens.weight", (vocabulary, hidden))
        )
        tied = config.tied or "lm_head.weight" not in weights
        # The largest matrix is the first, so that its source is given back before there is more.
        head = self._packer.stacked(
            [embedding if tied else weights.matrix("lm_head.weight", (vocabulary, hidden))]
        )
        weights.forget()
        self._layers = (_CLayer * config.layers)(
            *(
                self._layer(LayerWeights(weights, config, i), i, weights)
                for i in range(config.layers)
            )
        )
        self._model = _CModel(
            **{name: getattr(config, name) for name in _SIZES},
            **_described(config),
            **self._table(embedding),
            norm=self._vector(norm_weight(weights, config, config.norms.last, hidden)),
            head=head,
            layer=self._layers,
        )
        weights.forget()

    @property
    def weight_bytes(self) -> dict[WeightType, int]:
        """The bytes of weights that a step reads, by type, the most first."""
        return dict(self._packer.packed.most_common())

    def _table(self, embedding: Matrix) -> dict[str, int]:
        """The embedding as the decoder looks rows up in it. Blocks stay in the mapped file."""
        if embedding.quantised:
            return {
                "embedding_type": embedding.kind,
                "embedding": self._packer.keep(embedding.rows),
            }
        # A copy, so that nothing keeps the mapped file, which is as large as the packed weights.
        plain = embedding.kind == WeightType.BF16
        copy = embedding.ordered().copy() if plain else narrow(embedding.values())
        return {"embedding_type": WeightType.BF16, "embedding": self._packer.keep(copy)}

    def _layer(self, found: LayerWeights, index: int, weights: Checkpoint) -> Any:
        norms, lanes, kind = self.config.norms, self._panel // 2, self.config.kind(index)
        bias = None if kind.experts else found.gate_up_bias()
        vectors = {
            "attention_norm": found.norm(norms.attention),
            "attended_norm": found.norm(norms.attended),
            "mlp_norm": found.norm(norms.mlp),
            "mlp_out_norm": found.norm(norms.mlp_out),
            "gate_up_bias": None if bias is None else interleave(*bias, lanes),
            "down_bias": None if kind.experts else found.down_bias(),
        }
        layer = _CLayer(
            **{name: self._vector(values_X) for name, values_X in vectors.items()},
            rope=-1 if kind.rope is None else self._ropes.index(kind.rope),
            window=kind.window or 0,
            cached=self.config.cached(index).start,
            **(self._convolution(found, kind.taps) if kind.taps else self._heads(found)),
            **(self._mixture(found) if kind.experts else self._mlp(found)),
        )
        weights.forget()
        return layer

    def _heads(self, found: LayerWeights) -> dict[str, Any]:
        q_norm, k_norm = found.head_norms() or (None, None)
        out, out_bias = found.out()
        return {
            "q_norm": self._vector(q_norm),
            "k_norm": self._vector(k_norm),
            "qkv_bias": self._vector(found.qkv_bias()),
            "out_bias": self._vector(out_bias),
            "qkv": self._packer.stacked(found.qkv()),
            "out": self._packer.stacked([out]),
        }

    def _convolution(self, found: LayerWeights, taps: int) -> dict[str, Any]:
        enters, factors_CD, leaves = found.convolution(taps)
        return {
            "qkv": self._packer.stacked([enters]),
            "out": self._packer.stacked([leaves]),
            "taps": self._packer.keep(factors_CD.T.astype(np.float32)),
        }

    def _mlp(self, found: LayerWeights) -> dict[str, Any]:
        gate_up = self._packer.gated(*found.gate_up())
        return {"gate_up": gate_up, "down": self._packer.stacked([found.down()])}

    def _mixture(self, found: LayerWeights) -> dict[str, Any]:
        """The router, and the two matrices of each expert."""
        kind = self.config.experts
        assert kind is not None, "a layer of experts belongs to a model of experts"
        weights = (CWeight * (2 * kind.count))()
        for number in range(kind.count):
            gate, up, down = found.expert(kind, number)
            weights[2 * number] = self._packer.gated(gate, up)
            weights[2 * number + 1] = self._packer.stacked([down])
        self._experts.append(weights)
        router = self._packer.keep(found.router(kind))
        return {
            "router": router,
            "expert_weights": ctypes.cast(weights, ctypes.POINTER(CWeight)),
        }

    def _vector(self, values_X: Values | None) -> int | None:
        """The address of a vector in float32, padded to whole panels."""
        if values_X is None:
            return None
        padding = -len(values_X) % self._panel
        return self._packer.keep(np.pad(values_X.astype(np.float32), (0, padding)))

    def warm(self, cache_L2KPX: Values) -> None:
        """There is nothing to prepare."""

    def forward(self, step: StepInput, cache_L2KPX: Values) -> Values:
        """Compute a step: fills the tokens' KV slots and returns logits (R, V) in float32."""
        config = self.config
        tokens, rows = len(step.tokens_T), len(step.rows_R)
        cosine, sine = self._turns(step.positions_T)
        queries = queries_of_task(tokens, config.kv_heads, self.threads)
        flat: Flat = flatten(step.work, queries=queries)
        logits_RV = np.empty((rows, config.vocabulary), np.float32)
        heads = config.heads * len(flat.query)
        inputs = {
            "ids": step.tokens_T,
            "positions": step.positions_T,
            "slots": step.slots_T,
            "wanted": step.rows_R,
            "cosine": cosine,
            "sine": sine,
            "before": self._before(step),
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
                    **{name: array.ctypes.data for name, array in inputs.items()},
                    **{name: array.ctypes.data for name, array in flat._asdict().items()},
                    x=self._scratch_for("x", tokens * config.hidden),
                    normed=self._scratch_for("normed", max(tokens, rows) * stride(config.hidden)),
                    qkv=self._scratch_for("qkv", tokens * self._mixer_row()),
                    attended=self._scratch_for("attended", tokens * stride(self._mixed_row())),
                    added=self._scratch_for("added", tokens * config.hidden),
                    gated=self._scratch_for("gated", tokens * self._gated_row()),
                    partial=self._scratch_for("partial", heads * config.head_size),
                    top=self._scratch_for("top", heads),
                    weight=self._scratch_for("weight", heads),
                    rounded=self._rounded(max(tokens * self._uses, rows)),
                    **self._routed(tokens),
                )
            ),
        )
        return logits_RV

    def _turns(self, positions_T: Values) -> tuple[Values, Values]:
        """Cosines and sines of the positions, one rope after the other."""
        cosine, sine = [np.empty(0, np.float32)], [np.empty(0, np.float32)]
        for rope, frequencies_F in zip(self._ropes, self._frequencies, strict=True):
            angles_TF = positions_T.astype(np.float32)[:, None] * frequencies_F[None, :]
            cosine.append(_rounded(np.cos, angles_TF) * np.float32(rope.amplitude))
            sine.append(_rounded(np.sin, angles_TF) * np.float32(rope.amplitude))
        return np.concatenate(cosine), np.concatenate(sine)

    def _before(self, step: StepInput) -> Values:
        """The slots of the tokens that a convolution sees besides each row's own."""
        earlier = self.config.taps - 1
        return step.work.slots_before(earlier, BLOCK) if earlier > 0 else _NONE

    def _mixer_row(self) -> int:
        """The numbers of a token that attention or a convolution takes."""
        config = self.config
        heads = (config.heads + 2 * config.kv_heads) * config.head_size
        return max(heads, 3 * config.hidden) if config.taps else heads

    def _mixed_row(self) -> int:
        """The numbers of a token that attention or a convolution makes."""
        config = self.config
        heads = config.heads * config.head_size
        return max(heads, config.hidden) if config.taps else heads

    @property
    def _uses(self) -> int:
        """The rows of the widest step of a layer for each token: one row, or one for each
        expert."""
        return 1 if self.config.experts is None else self.config.experts.used

    def _gated_row(self) -> int:
        """The numbers between gate_up and down for each token."""
        experts = self.config.experts
        routed = 0 if experts is None else experts.used * stride(experts.mlp)
        return max(stride(self.config.mlp), routed)

    def _routed(self, tokens: int) -> dict[str, int]:
        """The addresses of scratch memory for experts, for each token and expert that it uses."""
        experts = self.config.experts
        if experts is None:
            return {}
        rows, hidden = tokens * experts.used, self.config.hidden
        sizes = {
            "expert": rows,
            "place": rows,
            "owner": rows,
            "first": experts.count + 1,
            "share": rows,
            "made": rows * hidden,
            "routed": rows * stride(hidden),
        }
        return {name: self._scratch_for(name, size) for name, size in sizes.items()}

    def _rounded(self, rows: int) -> int:
        """The address of scratch memory for the rounded inputs of a product."""
        config = self.config
        widest = max(config.hidden, config.mlp, config.heads * config.head_size)
        return self._scratch_for("rounded", rounded_rows(rows) * scratch_row(widest) // 4)

    def _scratch_for(self, name: str, count: int) -> int:
        """The address of scratch memory for `count` numbers; it is kept for the next step."""
        if name not in self._scratch or len(self._scratch[name]) < count:
            # Zeros, because a row's padding is multiplied by padded weights (0) and must be finite.
            self._scratch[name] = np.zeros(count, np.float32)
        return self._scratch[name].ctypes.data

    def new_cache(self, blocks: int, block_size: int) -> Values:
        """An empty KV cache (L, 2, K, P, H * S) of the bits of bfloat16; keys lie transposed in
        their block."""
        config = self.config
        shape = (config.cache_layers, 2, config.kv_heads, blocks, config.head_size * block_size)
        return empty_cache(shape, np.dtype(np.uint16))


def _rounded(function: np.ufunc, angles_TF: Values) -> Values:
    """The function of float32 angles, rounded once: numpy's own float32 sine is off by 1.5 units
    of the last place."""
    found: Values = function(angles_TF.astype(np.float64)).astype(np.float32)
    return found.ravel()
