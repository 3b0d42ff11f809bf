"""The forward pass of Llama, and of models that differ from it in a detail.

T = packed tokens, C = hidden, N = query heads, K = KV heads, H = head size, M = MLP channels,
V = vocabulary, L = layers, P = KV blocks, S = tokens a block, R = rows whose logits are wanted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from weftline_engine.embedded.model.base import CPU, StepInput, TorchModel, widened
from weftline_engine.embedded.model.checkpoint import Checkpoint
from weftline_engine.embedded.model.config import LlamaConfig, Rope
from weftline_kernels.attention import Attention
from weftline_kernels.operations import TORCH, Operations
from weftline_kernels.rope import rope_tables


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """The weights of one layer; q, k and v are one matrix, gate and up another."""

    attention_norm_C: Tensor
    qkv_XC: Tensor  # X = (N + 2K) * H
    out_CX: Tensor  # X = N * H
    mlp_norm_C: Tensor
    gate_up_XC: Tensor  # X = 2M
    down_CM: Tensor
    qkv_bias_X: Tensor | None
    qk_norm_H: tuple[Tensor, Tensor] | None


class LlamaDecoder(TorchModel):
    """Llama, Mistral, Qwen2 (biases of q, k and v) and Qwen3 (norms of the heads)."""

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
        self.frequencies_F = frequencies(config.rope, config.head_size).to(device)
        hidden, vocabulary = config.hidden, config.vocabulary

        def read(name: str, *shape: int) -> Tensor:
            return weights.read(name, shape).to(device, dtype)

        self.embedding_VC = read("model.embed_tokens.weight", vocabulary, hidden)
        self.layers = [self._layer(weights, i) for i in range(config.layers)]
        self.norm_C = read("model.norm.weight", hidden)
        tied = config.tied or "lm_head.weight" not in weights
        self.head_VC = self.embedding_VC if tied else read("lm_head.weight", vocabulary, hidden)

    def _layer(self, weights: Checkpoint, index: int) -> LlamaLayer:
        config = self.config
        hidden, mlp = config.hidden, config.mlp
        query, kv = config.heads * config.head_size, config.kv_heads * config.head_size

        def read(name: str, *shape: int) -> Tensor:
            found = weights.read(f"model.layers.{index}.{name}.weight", shape)
            return found.to(self.device, self.dtype)

        bias_X = qkv_bias(weights, config, index)
        return LlamaLayer(
            read("input_layernorm", hidden),
            torch.cat(
                [
                    read("self_attn.q_proj", query, hidden),
                    read("self_attn.k_proj", kv, hidden),
                    read("self_attn.v_proj", kv, hidden),
                ]
            ),
            read("self_attn.o_proj", hidden, query),
            read("post_attention_layernorm", hidden),
            torch.cat([read("mlp.gate_proj", mlp, hidden), read("mlp.up_proj", mlp, hidden)]),
            read("mlp.down_proj", hidden, mlp),
            None if bias_X is None else bias_X.to(self.device, self.dtype),
            (read("self_attn.q_norm", config.head_size), read("self_attn.k_norm", config.head_size))
            if config.qk_norm
            else None,
        )

    def compute(self, step: StepInput, attend: Attention, kv_L2KPSH: Tensor) -> Tensor:
        config, do = self.config, self.operations
        tables = rope_tables(step.positions_T, self.frequencies_F, self.dtype)
        heads = (-1, config.heads + 2 * config.kv_heads, config.head_size)
        # What a layer adds is added where the next norm is made, in one operation.
        x_TC: Tensor = F.embedding(step.tokens_T, self.embedding_VC)
        more_TC: Tensor | None = None
        for layer, (keys_KPSH, values_KPSH) in zip(self.layers, kv_L2KPSH, strict=True):
            x_TC, normed_TC = self._add_norm(x_TC, more_TC, layer.attention_norm_C)
            qkv_TXH = F.linear(normed_TC, layer.qkv_XC, layer.qkv_bias_X).view(*heads)
            norms = None if layer.qk_norm_H is None else (*layer.qk_norm_H, config.norm_eps)
            q_TNH = do.rope_store(qkv_TXH, *tables, norms, keys_KPSH, values_KPSH, step.slots_T)
            o_TNH = attend(q_TNH, keys_KPSH, values_KPSH)
            more_TC = F.linear(o_TNH.flatten(1), layer.out_CX)
            x_TC, normed_TC = self._add_norm(x_TC, more_TC, layer.mlp_norm_C)
            more_TC = F.linear(do.silu_mul(F.linear(normed_TC, layer.gate_up_XC)), layer.down_CM)
        assert more_TC is not None, "a model has a layer"
        rows_R = step.rows_R
        _, normed_RC = self._add_norm(x_TC[rows_R], more_TC[rows_R], self.norm_C)
        return widened(F.linear(normed_RC, self.head_VC))

    def _add_norm(
        self, x_TC: Tensor, more_TC: Tensor | None, norm_C: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The sum of both, and the sum normalised."""
        eps = self.config.norm_eps
        if more_TC is None:
            return x_TC, self.operations.rms_norm(x_TC, norm_C, eps)
        return self.operations.add_rms_norm(x_TC, more_TC, norm_C, eps)


def qkv_bias(weights: Checkpoint, config: LlamaConfig, index: int) -> Tensor | None:
    """The biases of a layer's q, k and v as one vector. None if the model has none."""
    if not config.qkv_bias:
        return None
    counts = {"q": config.heads, "k": config.kv_heads, "v": config.kv_heads}
    names = {f"model.layers.{index}.self_attn.{n}_proj.bias": c for n, c in counts.items()}
    return torch.cat(
        [weights.read(name, (count * config.head_size,)) for name, count in names.items()]
    )


def frequencies(rope: Rope, head_size: int) -> Tensor:
    """The angle per position of each pair of components. Llama 3.1 slows down the long waves."""
    plain_F = 1.0 / (rope.theta ** (torch.arange(0, head_size, 2, dtype=torch.float32) / head_size))
    if rope.factor == 1.0:
        return plain_F
    waves_F = 2 * math.pi / plain_F
    share_F = (rope.original_context / waves_F - rope.low) / (rope.high - rope.low)
    share_F = share_F.clamp(0, 1)
    return plain_F * (share_F + (1 - share_F) / rope.factor)
