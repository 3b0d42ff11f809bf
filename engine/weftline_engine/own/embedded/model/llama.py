"""The forward pass of Llama in torch, and of the families that differ from it by their config.

T = packed tokens, C = hidden, N = query heads, K = KV heads, H = head size, M = MLP channels,
V = vocabulary, L = layers, P = KV blocks, S = tokens a block, R = rows whose logits are wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from weftline_engine.own.embedded.host_device import Values
from weftline_engine.own.embedded.model.base import StepInput
from weftline_engine.own.embedded.model.checkpoint import Checkpoint
from weftline_engine.own.embedded.model.config import HeadNorm, LayerKind, LlamaConfig, Rope
from weftline_engine.own.embedded.model.layer_weights import LayerWeights, norm_weight
from weftline_engine.own.embedded.model.mlp import Mixture, Mlp, gate_of
from weftline_engine.own.embedded.model.rope_angles import frequencies
from weftline_engine.own.embedded.model.torch_model import CPU, TorchModel, widened
from weftline_kernels.attention import Attention, TorchAttention
from weftline_kernels.operations import TORCH, Operations
from weftline_kernels.rope import rope_tables

# Sines and cosines of a step by rope.
Turns = dict[Rope | None, tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Heads:
    """The weights of attention; q, k and v are one matrix."""

    qkv_XC: Tensor  # X = (N + 2K) * H
    qkv_bias_X: Tensor | None
    norms: tuple[Tensor, Tensor] | None
    out_CX: Tensor  # X = N * H
    out_bias_C: Tensor | None


@dataclass(frozen=True, slots=True)
class Convolution:
    """The weights of a short convolution: of its gates and inputs, its taps, and its output."""

    in_XC: Tensor  # X = 3 * C
    taps_CD: Tensor
    out_CC: Tensor


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """The weights of one layer."""

    attention_norm_C: Tensor | None
    mixer: Heads | Convolution
    attended_norm_C: Tensor | None
    mlp_norm_C: Tensor | None
    mlp: Mlp | Mixture
    mlp_out_norm_C: Tensor | None


class LlamaDecoder(TorchModel):
    """A decoder that a LlamaConfig describes. Each step of a layer is a method."""

    config: LlamaConfig

    def __init__(
        self,
        config: LlamaConfig,
        weights: Checkpoint,
        dtype: torch.dtype,
        device: torch.device = CPU,
        operations: Operations = TORCH,
    ) -> None:
        super().__init__(config, dtype, device, operations)
        self.scale = config.score_scale
        self.kinds = [config.kind(i) for i in range(config.layers)]
        self.cached = [config.cached(i) for i in range(config.layers)]
        ropes = {kind.rope for kind in self.kinds if kind.rope is not None}
        self.frequencies = {
            rope: torch.from_numpy(frequencies(rope, config.head_size)).to(device) for rope in ropes
        }
        hidden, vocabulary = config.hidden, config.vocabulary

        def read(name: str) -> Tensor:
            return self.matrix(weights.matrix(name, (vocabulary, hidden)))

        self.embedding_VC = read("model.embed_tokens.weight")
        self.gate = gate_of(config.activation, operations.silu_mul)
        self.layers = [
            self._layer(LayerWeights(weights, config, i), self.kinds[i])
            for i in range(config.layers)
        ]
        self.norm_C = self.vector(norm_weight(weights, config, config.norms.last, hidden))
        tied = config.tied or "lm_head.weight" not in weights
        self.head_VC = self.embedding_VC if tied else read("lm_head.weight")

    def _layer(self, found: LayerWeights, kind: LayerKind) -> LlamaLayer:
        norms, perhaps = self.config.norms, self._perhaps
        return LlamaLayer(
            perhaps(found.norm(norms.attention)),
            self._convolution(found, kind.taps) if kind.taps else self._heads(found),
            perhaps(found.norm(norms.attended)),
            perhaps(found.norm(norms.mlp)),
            self._mixture(found) if kind.experts else self._mlp(found),
            perhaps(found.norm(norms.mlp_out)),
        )

    def _heads(self, found: LayerWeights) -> Heads:
        norms, (out, out_bias) = found.head_norms(), found.out()
        return Heads(
            torch.cat([self.matrix(one) for one in found.qkv()]),
            self._perhaps(found.qkv_bias()),
            None if norms is None else (self.vector(norms[0]), self.vector(norms[1])),
            self.matrix(out),
            self._perhaps(out_bias),
        )

    def _convolution(self, found: LayerWeights, taps: int) -> Convolution:
        enters, factors, leaves = found.convolution(taps)
        return Convolution(self.matrix(enters), self.vector(factors), self.matrix(leaves))

    def _perhaps(self, values: Values | None) -> Tensor | None:
        return None if values is None else self.vector(values)

    def _mlp(self, found: LayerWeights) -> Mlp:
        bias = found.gate_up_bias()
        return Mlp(
            torch.cat([self.matrix(one) for one in found.gate_up()]),
            None if bias is None else torch.cat([self.vector(one) for one in bias]),
            self.matrix(found.down()),
            self._perhaps(found.down_bias()),
        )

    def _mixture(self, found: LayerWeights) -> Mixture:
        kind, experts = self.config.experts, []
        assert kind is not None, "a layer of experts belongs to a model of experts"
        for number in range(kind.count):
            gate, up, down = map(self.matrix, found.expert(kind, number))
            experts.append(Mlp(torch.cat((gate, up)), None, down, None))
        return Mixture(kind, self.vector(found.router(kind)), tuple(experts))

    def attend(self, step: StepInput, kv_L2KPSH: Tensor) -> Tensor:
        cap = self.config.scales.score_cap
        attends = {
            window: TorchAttention(step.work, self.scale, window=window, cap=cap)
            for window in {kind.window for kind in self.kinds}
        }
        return self._compute(step, attends.__getitem__, kv_L2KPSH)

    def compute(self, step: StepInput, attend: Attention, kv_L2KPSH: Tensor) -> Tensor:
        assert not self.config.sliding, "a device's attention has no windows"
        return self._compute(step, lambda window: attend, kv_L2KPSH)

    def _compute(
        self, step: StepInput, attend: Callable[[int | None], Attention], kv_L2KPSH: Tensor
    ) -> Tensor:
        turns = self._turns(step.positions_T)
        # What a layer adds is added where the next norm is made, in one operation.
        x_TC = self._embed(step.tokens_T)
        more_TC: Tensor | None = None
        for index, (layer, kind) in enumerate(zip(self.layers, self.kinds, strict=True)):
            x_TC, normed_TC = self._add_norm(x_TC, more_TC, layer.attention_norm_C)
            cache = kv_L2KPSH[self.cached[index].start : self.cached[index].stop]
            match layer.mixer:
                case Heads() as heads:
                    qkv_TXH, norms = self._qkv(heads, normed_TC)
                    keys, values = cache[0]
                    q_TNH = self.operations.rope_store(
                        qkv_TXH, *turns[kind.rope], norms, keys, values, step.slots_T
                    )
                    o_TNH = attend(kind.window)(q_TNH, keys, values)
                    out_TC = F.linear(o_TNH.flatten(1), heads.out_CX, heads.out_bias_C)
                case Convolution() as short:
                    out_TC = self._convolve(short, normed_TC, step, cache.flatten(0, 2))
            more_TC = self._more(out_TC, layer.attended_norm_C)
            x_TC, normed_TC = self._add_norm(x_TC, more_TC, layer.mlp_norm_C)
            more_TC = self._more(layer.mlp(normed_TC, self.gate), layer.mlp_out_norm_C)
        assert more_TC is not None, "a model has a layer"
        rows_R = step.rows_R
        _, normed_RC = self._add_norm(x_TC[rows_R], more_TC[rows_R], self.norm_C)
        return self._logits(normed_RC)

    def _convolve(
        self, short: Convolution, normed_TC: Tensor, step: StepInput, cache_YPSH: Tensor
    ) -> Tensor:
        enters_TC, leaves_TC, x_TC = F.linear(normed_TC, short.in_XC).chunk(3, dim=1)
        before_TE = step.work.slots_before(short.taps_CD.shape[1] - 1, cache_YPSH.shape[2])
        sum_TC = self.operations.short_conv(
            enters_TC * x_TC,
            short.taps_CD,
            cache_YPSH,
            step.slots_T,
            torch.from_numpy(before_TE),
        )
        return F.linear(leaves_TC * sum_TC, short.out_CC)

    def _turns(self, positions_T: Tensor) -> Turns:
        """Cosines and sines by rope. A layer without a rope turns two components by nothing."""
        found: Turns = {
            rope: rope_tables(positions_T, frequencies_F, self.dtype, rope.amplitude)
            for rope, frequencies_F in self.frequencies.items()
        }
        if any(kind.rope is None for kind in self.kinds):
            nothing_F = torch.zeros(1, device=self.device)
            found[None] = rope_tables(positions_T, nothing_F, self.dtype)
        return found

    def _embed(self, tokens_T: Tensor) -> Tensor:
        x_TC, scale = F.embedding(tokens_T, self.embedding_VC), self.config.scales.embedding
        return x_TC if scale == 1 else x_TC * scale

    def _add_norm(
        self, x_TC: Tensor, more_TC: Tensor | None, norm_C: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The sum of both, and the sum normalised if there is a norm."""
        eps = self.config.norm_eps
        if norm_C is None:
            sum_TC = x_TC if more_TC is None else x_TC + more_TC
            return sum_TC, sum_TC
        if more_TC is None:
            return x_TC, self.operations.rms_norm(x_TC, norm_C, eps)
        return self.operations.add_rms_norm(x_TC, more_TC, norm_C, eps)

    def _more(self, out_TC: Tensor, norm_C: Tensor | None) -> Tensor:
        """What attention or MLP adds to the residual stream."""
        scale = self.config.scales.residual
        if norm_C is not None:
            out_TC = self.operations.rms_norm(out_TC, norm_C, self.config.norm_eps)
        return out_TC if scale == 1 else out_TC * scale

    def _qkv(
        self, layer: Heads, normed_TC: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor, float] | None]:
        """Queries, keys and values, and the norms that their heads still need."""
        config = self.config
        qkv_TX = F.linear(normed_TC, layer.qkv_XC, layer.qkv_bias_X)
        norms = None if layer.norms is None else (*layer.norms, config.norm_eps)
        if norms is not None and config.norms.heads is HeadNorm.ROW:
            query, key = len(norms[0]), len(norms[1])
            sides = qkv_TX.split_with_sizes([query, key, qkv_TX.shape[1] - query - key], dim=1)
            normed = map(self.operations.rms_norm, sides[:2], norms[:2], norms[2:] * 2)
            qkv_TX, norms = torch.cat((*normed, sides[2]), dim=1), None
        return qkv_TX.view(-1, config.heads + 2 * config.kv_heads, config.head_size), norms

    def _logits(self, normed_RC: Tensor) -> Tensor:
        scales = self.config.scales
        logits_RV = widened(F.linear(normed_RC, self.head_VC))
        if scales.logits != 1:
            logits_RV = logits_RV * scales.logits
        if scales.logit_cap is not None:
            logits_RV = scales.logit_cap * torch.tanh(logits_RV / scales.logit_cap)
        return logits_RV
