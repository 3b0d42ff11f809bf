"""The forward pass of OPT (arXiv:2205.01068): learned positions, LayerNorm, ReLU, biases.

T = packed tokens, C = hidden, N = heads, H = head size, M = MLP channels, E = embedding width,
V = vocabulary, L = layers, P = KV blocks, S = tokens a block, R = rows whose logits are wanted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from weftline_engine.own.embedded.model.base import CPU, StepInput, TorchModel, widened
from weftline_engine.own.embedded.model.checkpoint import Checkpoint
from weftline_engine.own.embedded.model.config import OptConfig
from weftline_kernels.attention import Attention
from weftline_kernels.operations import TORCH, Operations

# The first two rows of the position table are not used by any token.
_FIRST_POSITION = 2
_EPS = 1e-5  # no config.json of OPT has another value


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix and its bias; only models derived from OPT have no bias."""

    weight_XY: Tensor
    bias_X: Tensor | None

    def __call__(self, x_TY: Tensor) -> Tensor:
        return F.linear(x_TY, self.weight_XY, self.bias_X)


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Normalises each row to mean 0 and variance 1; then a weight and a bias per channel."""

    weight_C: Tensor
    bias_C: Tensor

    def __call__(self, x_TC: Tensor) -> Tensor:
        return F.layer_norm(x_TC, self.weight_C.shape, self.weight_C, self.bias_C, _EPS)


@dataclass(frozen=True, slots=True)
class OPTLayer:
    """The weights of one layer; q, k and v are one matrix."""

    attention_norm: LayerNorm
    qkv: Linear
    out: Linear
    mlp_norm: LayerNorm
    up: Linear
    down: Linear


class OptDecoder(TorchModel):
    """OPT of every size. The 350M model normalises after attention and MLP, and projects its
    embedding."""

    config: OptConfig

    def __init__(
        self,
        config: OptConfig,
        weights: Checkpoint,
        dtype: torch.dtype,
        device: torch.device = CPU,
        operations: Operations = TORCH,
    ) -> None:
        super().__init__(config, dtype, device, operations)
        self._weights = weights
        hidden, width = config.hidden, config.embedding
        positions = config.context_limit + _FIRST_POSITION
        self.embedding_VE = self._read("embed_tokens.weight", config.vocabulary, width)
        self.positions_XC = self._read("embed_positions.weight", positions, hidden)
        projects = width != hidden
        self.in_CE = self._read("project_in.weight", hidden, width) if projects else None
        self.out_EC = self._read("project_out.weight", width, hidden) if projects else None
        self.layers = [self._layer(f"layers.{i}") for i in range(config.layers)]
        self.last_norm = self._norm("final_layer_norm") if config.last_norm else None
        self.head_VE = self.embedding_VE
        if not config.tied and "lm_head.weight" in weights:
            found = weights.read("lm_head.weight", (config.vocabulary, width))
            self.head_VE = found.to(device, dtype)
        del self._weights

    def _read(self, name: str, *shape: int) -> Tensor:
        return self._weights.read(f"model.decoder.{name}", shape).to(self.device, self.dtype)

    def _norm(self, name: str) -> LayerNorm:
        hidden = self.config.hidden
        return LayerNorm(self._read(f"{name}.weight", hidden), self._read(f"{name}.bias", hidden))

    def _linear(self, names: list[str], rows: int, columns: int) -> Linear:
        """These projections as one matrix."""
        weight = torch.cat([self._read(f"{name}.weight", rows, columns) for name in names])
        if not self.config.bias:
            return Linear(weight, None)
        return Linear(weight, torch.cat([self._read(f"{name}.bias", rows) for name in names]))

    def _layer(self, name: str) -> OPTLayer:
        hidden, mlp = self.config.hidden, self.config.mlp
        return OPTLayer(
            self._norm(f"{name}.self_attn_layer_norm"),
            self._linear([f"{name}.self_attn.{side}_proj" for side in "qkv"], hidden, hidden),
            self._linear([f"{name}.self_attn.out_proj"], hidden, hidden),
            self._norm(f"{name}.final_layer_norm"),
            self._linear([f"{name}.fc1"], mlp, hidden),
            self._linear([f"{name}.fc2"], hidden, mlp),
        )

    def compute(self, step: StepInput, attend: Attention, kv_L2KPSH: Tensor) -> Tensor:
        config, kv_store = self.config, self.operations.kv_store
        x_TC = F.embedding(step.tokens_T, self.embedding_VE)
        if self.in_CE is not None:
            x_TC = F.linear(x_TC, self.in_CE)
        x_TC = x_TC + F.embedding(step.positions_T + _FIRST_POSITION, self.positions_XC)
        for layer, (keys_NPSH, values_NPSH) in zip(self.layers, kv_L2KPSH, strict=True):
            normed_TC = layer.attention_norm(x_TC) if config.norm_first else x_TC
            qkv_TNH = layer.qkv(normed_TC).view(-1, 3 * config.heads, config.head_size)
            q_TNH, k_TNH, v_TNH = qkv_TNH.chunk(3, dim=1)
            kv_store(keys_NPSH, k_TNH, step.slots_T)
            kv_store(values_NPSH, v_TNH, step.slots_T)
            x_TC = x_TC + layer.out(attend(q_TNH, keys_NPSH, values_NPSH).flatten(1))
            x_TC = x_TC if config.norm_first else layer.attention_norm(x_TC)
            normed_TC = layer.mlp_norm(x_TC) if config.norm_first else x_TC
            x_TC = x_TC + layer.down(F.relu(layer.up(normed_TC)))
            x_TC = x_TC if config.norm_first else layer.mlp_norm(x_TC)
        x_RC = x_TC[step.rows_R]
        if self.last_norm is not None:
            x_RC = self.last_norm(x_RC)
        if self.out_EC is not None:
            x_RC = F.linear(x_RC, self.out_EC)
        return widened(F.linear(x_RC, self.head_VE))
