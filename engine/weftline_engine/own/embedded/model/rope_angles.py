"""Rotary embeddings: how config.json states them, and the angle of each pair of components.

F = pairs of components that are turned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from weftline_engine.own.embedded.model.config import (
    LinearScaling,
    Llama3,
    LongRope,
    ModelError,
    Rope,
    Yarn,
)

Floats = npt.NDArray[np.float32]

_PLAIN_THETA = 10000.0


def read_rope(found: Mapping[str, Any], raw: Mapping[str, Any], head_size: int) -> Rope:
    """The rope of the entry `found` (`rope_parameters` or the older `rope_scaling`) of a
    config.json. `raw` holds what the entry leaves out. Raises ModelError for an unknown type."""
    theta = float(found.get("rope_theta") or raw.get("rope_theta") or _PLAIN_THETA)
    share = found.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0
    turned = int(head_size * float(share))
    components = None if turned == head_size else turned
    if turned % 2 or not 0 < turned <= head_size:
        raise ModelError(
            f"partial_rotary_factor {share!r} turns {turned} of {head_size} components"
        )
    kind = found.get("rope_type") or found.get("type") or "default"
    longest = int(raw["max_position_embeddings"])
    original = int(
        raw.get("original_max_position_embeddings")
        or found.get("original_max_position_embeddings")
        or longest
    )
    match kind:
        case "default":
            return Rope(theta, components)
        case "linear":
            return Rope(theta, components, LinearScaling(float(found["factor"])))
        case "llama3":
            low, high = float(found["low_freq_factor"]), float(found["high_freq_factor"])
            return Rope(theta, components, Llama3(float(found["factor"]), low, high, original))
        case "yarn":
            return _yarn(found, Rope(theta, components), original, longest)
        case "longrope" | "su":
            return _long(found, Rope(theta, components), original, longest, turned)
    raise ModelError(
        f"rope_type {kind!r} is not supported; only default, linear, llama3, longrope and yarn are"
    )


def _yarn(found: Mapping[str, Any], plain: Rope, original: int, longest: int) -> Rope:
    factor = float(found["factor"] or longest / original)
    amplitude = found.get("attention_factor")
    if amplitude is None:
        over, under = found.get("mscale"), found.get("mscale_all_dim")
        amplitude = _magnitude(factor, 1.0)
        if over and under:
            amplitude = _magnitude(factor, float(over)) / _magnitude(factor, float(under))
    scaling = Yarn(
        factor,
        original,
        float(found.get("beta_fast") or 32),
        float(found.get("beta_slow") or 1),
        bool(found.get("truncate", True)),
    )
    return Rope(plain.theta, plain.components, scaling, float(amplitude))


def _magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _long(found: Mapping[str, Any], plain: Rope, original: int, longest: int, turned: int) -> Rope:
    """One of the two lists serves all contexts, because sequences share the keys of a prefix: the
    long one if the model may serve contexts beyond the original."""
    name = "long_factor" if longest > original else "short_factor"
    factors = tuple(float(factor) for factor in found[name])
    if len(factors) != turned // 2:
        raise ModelError(f"{name} has {len(factors)} numbers where {turned // 2} pairs are turned")
    amplitude = found.get("attention_factor")
    if amplitude is None:
        factor = float(found.get("factor") or longest / original)
        amplitude = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return Rope(plain.theta, plain.components, LongRope(factors), float(amplitude))


def frequencies(rope: Rope, head_size: int) -> Floats:
    """The angle per position of each pair of components that is turned, in the float32 in which
    models were trained."""
    turned = rope.components or head_size
    powers_F = np.arange(0, turned, 2, dtype=np.float32) / turned
    # A power in float32 is off by some units of the last place.
    wide_F: npt.NDArray[np.float64] = rope.theta ** powers_F.astype(np.float64)
    plain_F: Floats = (1 / wide_F.astype(np.float32)).astype(np.float32)
    match rope.scaling:
        case None:
            return plain_F
        case LinearScaling(factor):
            return plain_F / factor
        case LongRope(factors):
            slower_F: Floats = np.array(factors, np.float32)
            return plain_F / slower_F
        case Llama3(factor, low, high, original):
            share_F = (original * plain_F / (2 * math.pi) - low) / (high - low)
        case Yarn(factor, original, fast, slow, whole):
            share_F = 1 - _ramp(rope.theta, turned, original, fast, slow, whole)
    share_F = share_F.clip(0, 1)
    found: Floats = plain_F * (share_F + (1 - share_F) / factor)
    return found


def _ramp(
    theta: float, turned: int, original: int, fast: float, slow: float, whole: bool
) -> Floats:
    """0 for the pairs up to the one that turns `fast` times in the original context, 1 from the one
    that turns `slow` times on."""

    def pair(turns: float) -> float:
        return turned * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair(fast), pair(slow)
    if whole:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, turned - 1)
    if first == last:
        last += 0.001  # as the original does, so that the ramp is no division by zero
    pairs_F = np.arange(turned // 2, dtype=np.float32)
    return (pairs_F - first) / (last - first)
