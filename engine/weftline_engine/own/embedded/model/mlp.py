"""The MLP of a layer in torch: one for all rows, or a mixture of experts of which a row uses some.

T = packed tokens, C = hidden, M = MLP channels, E = experts, U = experts that a row uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from weftline_engine.own.embedded.model.config import Activation, Experts

# The activated gate times the other half of the channels: (T, 2M) -> (T, M).
Gate = Callable[[Tensor], Tensor]


def gate_of(activation: Activation, silu_mul: Gate) -> Gate:
    """The gate of an activation; `silu_mul` is that of SiLU."""
    return silu_mul if activation is Activation.SILU else _gelu_mul


def _gelu_mul(x_T2M: Tensor) -> Tensor:
    gate_TM, up_TM = x_T2M.chunk(2, dim=-1)
    return F.gelu(gate_TM, approximate="tanh") * up_TM


@dataclass(frozen=True, slots=True)
class Mlp:
    """An MLP. `gate_up_XC` (X = 2M) is the gate above what it multiplies."""

    gate_up_XC: Tensor
    gate_up_bias_X: Tensor | None
    down_CM: Tensor
    down_bias_C: Tensor | None

    def __call__(self, x_TC: Tensor, gate: Gate) -> Tensor:
        both_TX = F.linear(x_TC, self.gate_up_XC, self.gate_up_bias_X)
        return F.linear(gate(both_TX), self.down_CM, self.down_bias_C)


@dataclass(frozen=True, slots=True)
class Mixture:
    """A router and its experts. A row's result is the weighted sum of those that it uses.

    The mixture looks at the router's choice on the host, so a CUDA graph cannot capture it.
    """

    kind: Experts
    router_EC: Tensor
    experts: tuple[Mlp, ...]

    def __call__(self, x_TC: Tensor, gate: Gate) -> Tensor:
        shares_TE = F.linear(x_TC, self.router_EC).softmax(-1, torch.float32)
        share_TU, used_TU = shares_TE.topk(self.kind.used, dim=-1)
        if self.kind.normalised:
            share_TU = share_TU / share_TU.sum(-1, keepdim=True)
        share_TU = share_TU.to(x_TC.dtype)
        sum_TC = torch.zeros_like(x_TC)
        # In the order of the experts, so that a row's sum does not depend on the other rows.
        for number in sorted(set(used_TU.flatten().tolist())):
            rows, places = (used_TU == number).nonzero(as_tuple=True)
            out = self.experts[number](x_TC[rows], gate) * share_TU[rows, places, None]
            sum_TC.index_add_(0, rows, out)
        return sum_TC
