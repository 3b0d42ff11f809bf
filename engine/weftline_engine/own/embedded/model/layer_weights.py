"""The weights of one layer by what they do, whatever a family calls them.

C = hidden, X = rows of a matrix.
"""

from __future__ import annotations

import numpy as np

from weftline_engine.own.embedded.host_device import Values
from weftline_engine.own.embedded.model.checkpoint import Checkpoint
from weftline_engine.own.embedded.model.config import Experts, HeadNorm, LlamaConfig
from weftline_engine.own.embedded.model.matrix import Matrix


class LayerWeights:
    """The weights of layer `index`, read when asked for."""

    def __init__(self, weights: Checkpoint, config: LlamaConfig, index: int) -> None:
        self._weights = weights
        self._config = config
        self._before = f"model.layers.{index}."
        heads, size = config.heads, config.head_size
        self._qkv = (heads * size, config.kv_heads * size, config.kv_heads * size)

    def norm(self, name: str | None) -> Values | None:
        """The weight of an RMSNorm of the residual stream; None if the family has no such norm."""
        return None if name is None else self._norm(name, self._config.hidden)

    def head_norms(self) -> tuple[Values, Values] | None:
        """The weights of the norms of queries and keys."""
        size = self._config.head_size
        match self._config.norms.heads:
            case HeadNorm.NONE:
                return None
            case HeadNorm.HEAD:
                widths = size, size
            case HeadNorm.ROW:
                widths = self._qkv[0], self._qkv[1]
        norms = self._config.norms
        return self._norm(norms.query, widths[0]), self._norm(norms.key, widths[1])

    def qkv(self) -> list[Matrix]:
        """The matrices of queries, keys and values, one above the other; or all as one."""
        return self._matrices(self._config.names.qkv, self._qkv)

    def qkv_bias(self) -> Values | None:
        """The biases of queries, keys and values as one vector."""
        if not self._config.biases.qkv:
            return None
        return np.concatenate(self._vectors(self._config.names.qkv, self._qkv))

    def out(self) -> tuple[Matrix, Values | None]:
        """The matrix of what attention adds, and its bias."""
        name = self._config.names.out
        bias = self._bias(name) if self._config.biases.out else None
        return self._matrix(name, self._config.hidden, self._qkv[0]), bias

    def convolution(self, taps: int) -> tuple[Matrix, Values, Matrix]:
        """A short convolution: the matrix of its gates and inputs, the factor of each channel and
        tap, and the matrix of what it adds."""
        hidden = self._config.hidden
        return (
            self._matrix("conv.in_proj", 3 * hidden, hidden),
            self._matrix("conv.conv", hidden, taps).values(),
            self._matrix("conv.out_proj", hidden, hidden),
        )

    def router(self, experts: Experts) -> Values:
        """The matrix that chooses a row's experts."""
        return self._matrix("mlp.gate", experts.count, self._config.hidden).values()

    def expert(self, experts: Experts, number: int) -> tuple[Matrix, Matrix, Matrix]:
        """The matrices of an expert: the gate's, the one whose rows the gate multiplies, and the
        one that adds to the output."""
        name, wide, hidden = f"mlp.experts.{number}", experts.mlp, self._config.hidden
        return (
            self._matrix(f"{name}.gate_proj", wide, hidden),
            self._matrix(f"{name}.up_proj", wide, hidden),
            self._matrix(f"{name}.down_proj", hidden, wide),
        )

    def gate_up(self) -> tuple[Matrix, Matrix]:
        """The matrices of the gate and of what it multiplies."""
        config = self._config
        found = self._matrices(config.names.gate_up, (config.mlp, config.mlp))
        if len(found) == 1:
            return found[0][: config.mlp], found[0][config.mlp :]
        gate, up = found
        return gate, up

    def gate_up_bias(self) -> tuple[Values, Values] | None:
        """The biases of the gate and of what it multiplies."""
        config = self._config
        if not config.biases.mlp:
            return None
        found = self._vectors(config.names.gate_up, (config.mlp, config.mlp))
        if len(found) == 1:
            return found[0][: config.mlp], found[0][config.mlp :]
        gate, up = found
        return gate, up

    def down(self) -> Matrix:
        """The matrix of what the MLP adds."""
        return self._matrix(self._config.names.down, self._config.hidden, self._config.mlp)

    def down_bias(self) -> Values | None:
        """The bias of what the MLP adds."""
        return self._bias(self._config.names.down) if self._config.biases.mlp else None

    def _norm(self, name: str, width: int) -> Values:
        return norm_weight(self._weights, self._config, f"{self._before}{name}", width)

    def _matrix(self, name: str, rows: int, columns: int) -> Matrix:
        return self._weights.matrix(f"{self._before}{name}.weight", (rows, columns))

    def _bias(self, name: str) -> Values:
        return self._weights.vector(f"{self._before}{name}.bias", self._config.hidden)

    def _matrices(self, names: tuple[str, ...], rows: tuple[int, ...]) -> list[Matrix]:
        """The matrices of `names`, of which one may hold all rows."""
        sizes, hidden = (sum(rows),) if len(names) == 1 else rows, self._config.hidden
        return [self._matrix(name, size, hidden) for name, size in zip(names, sizes, strict=True)]

    def _vectors(self, names: tuple[str, ...], rows: tuple[int, ...]) -> list[Values]:
        """The biases of `names`, of which one may hold all rows."""
        sizes = (sum(rows),) if len(names) == 1 else rows
        return [
            self._weights.vector(f"{self._before}{name}.bias", size)
            for name, size in zip(names, sizes, strict=True)
        ]


def norm_weight(weights: Checkpoint, config: LlamaConfig, name: str, width: int) -> Values:
    """The factors of an RMSNorm in float32: its weight and the family's offset."""
    found = weights.vector(f"{name}.weight", width)
    return found + np.float32(config.norms.offset)
