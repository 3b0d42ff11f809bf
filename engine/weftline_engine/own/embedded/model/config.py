"""What a decoder consists of, as data: sizes, norms, rotary embeddings, windows, multipliers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any


class ModelError(Exception):
    """The model cannot be run; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All waves are slower by a factor."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3:
    """Llama 3.1's scaling: long waves are slower by a factor, short ones stay."""

    factor: float
    low: float
    high: float
    original_context: int


@dataclass(frozen=True, slots=True)
class Yarn:
    """YaRN (arXiv:2309.00071): waves that turn fewer than `slow` times in the original context are
    slower by a factor, those that turn more than `fast` times stay, and between them is a ramp."""

    factor: float
    original_context: int
    fast: float
    slow: float
    whole: bool  # whether the ends of the ramp are rounded to whole components


@dataclass(frozen=True, slots=True)
class LongRope:
    """LongRoPE (arXiv:2402.13753): every wave is slower by a factor of its own."""

    factors: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of the first `components` of a head (None: of all)."""

    theta: float
    components: int | None = None
    scaling: LinearScaling | Llama3 | Yarn | LongRope | None = None
    amplitude: float = 1.0  # a factor of every sine and cosine


@dataclass(frozen=True, slots=True)
class LayerKind:
    """In what a layer may differ from its neighbours.

    A row sees the last `window` tokens, itself among them. None means all tokens. A layer with
    `taps` has a short convolution of so many tokens in place of attention.
    """

    rope: Rope | None
    window: int | None = None
    experts: bool = False
    taps: int = 0


class HeadNorm(Enum):
    """What the RMSNorms of queries and keys see at once."""

    NONE = "none"
    HEAD = "each head"
    ROW = "all heads of a row"


class Activation(Enum):
    """The function of an MLP's gate."""

    SILU = "silu"
    GELU_TANH = "gelu_pytorch_tanh"


@dataclass(frozen=True, slots=True)
class Norms:
    """The RMSNorms of a layer by the names of their weights. None: the family has no such norm.

    `attended` and `mlp_out` normalise what attention and MLP add to the residual stream. A row is
    multiplied by its weight plus `offset`, which Gemma's checkpoints leave out. `last` is the norm
    behind the last layer.
    """

    attention: str | None = "input_layernorm"
    attended: str | None = None
    mlp: str | None = "post_attention_layernorm"
    mlp_out: str | None = None
    heads: HeadNorm = HeadNorm.NONE
    query: str = "self_attn.q_norm"
    key: str = "self_attn.k_norm"
    last: str = "model.norm"
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class MatrixNames:
    """The matrices of a layer by name. Several names are stacked to one matrix, and one name of
    `qkv` or `gate_up` is a matrix that the checkpoint holds stacked already."""

    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    out: str = "self_attn.o_proj"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"


@dataclass(frozen=True, slots=True)
class MatrixBiases:
    """Which matrices have a bias."""

    qkv: bool = False
    out: bool = False
    mlp: bool = False


@dataclass(frozen=True, slots=True)
class Scales:
    """Factors of the residual stream and of scores. A cap c makes c * tanh(x / c) of x."""

    embedding: float = 1.0
    residual: float = 1.0  # of what attention and MLP add
    scores: float | None = None  # None: 1 / sqrt(head_size)
    logits: float = 1.0
    score_cap: float | None = None
    logit_cap: float | None = None


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of experts of some layers: how many there are, how many a row uses, the channels
    of each, and whether the shares of those used add up to 1."""

    count: int
    used: int
    mlp: int
    normalised: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The sizes of a decoder's attention and MLP."""

    architecture: str
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    mlp: int
    context_limit: int
    tied: bool
    eos: tuple[int, ...]

    @property
    def cache_layers(self) -> int:
        """The layers of the KV cache."""
        return self.layers

    @property
    def sliding(self) -> Mapping[int, int]:
        """The window of each layer of the KV cache that has one."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig(ModelConfig):
    """Llama, and the families that differ from it in details, each of them a field."""

    kinds: tuple[LayerKind, ...]  # of the layers in their order, repeated if there are more
    norm_eps: float
    norms: Norms = Norms()
    names: MatrixNames = MatrixNames()
    biases: MatrixBiases = MatrixBiases()
    scales: Scales = Scales()
    activation: Activation = Activation.SILU
    experts: Experts | None = None

    def kind(self, layer: int) -> LayerKind:
        return self.kinds[layer % len(self.kinds)]

    @property
    def score_scale(self) -> float:
        """The factor of a score before the softmax."""
        return self.head_size**-0.5 if self.scales.scores is None else self.scales.scores

    @property
    def taps(self) -> int:
        """The tokens that a short convolution sees; 0 if no layer has one."""
        return max((kind.taps for kind in self.kinds), default=0)

    def cached(self, layer: int) -> range:
        """The layers of the KV cache that a layer uses. A convolution keeps `hidden` numbers of a
        token, and a layer of the cache has the room of a token's keys and values."""
        wide = -(-self.hidden // (2 * self.kv_heads * self.head_size))
        sizes = [wide if self.kind(one).taps else 1 for one in range(layer + 1)]
        return range(sum(sizes[:-1]), sum(sizes))

    @property
    def cache_layers(self) -> int:
        return self.cached(self.layers - 1).stop

    @property
    def sliding(self) -> Mapping[int, int]:
        found: dict[int, int] = {}
        for layer in range(self.layers):
            kind = self.kind(layer)
            if window := kind.window or kind.taps:
                found |= dict.fromkeys(self.cached(layer), window)
        return found

    @property
    def window(self) -> int | None:
        """The smallest window of attention in a layer. None if every layer sees all tokens."""
        return min((kind.window for kind in self.kinds if kind.window is not None), default=None)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file. Raises ModelError if there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path.parent} holds no {path.name}: give a model directory") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} should hold a JSON object")
    return value
