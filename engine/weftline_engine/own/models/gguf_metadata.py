"""The key-value pairs of a GGUF file, with checked types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weftline_engine.own.models.gguf_header import TextCount
from weftline_engine.own.models.name import ModelUnavailable

_MAX_DIMENSION = 1 << 20


class Metadata:
    """The pairs of a file. Keys of the architecture are given without its name.

    A key that is missing, or whose value is of another type, is refused by its name.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.architecture = self.text("general.architecture")

    def text(self, key: str, default: str | None = None) -> str:
        """A string, of the whole file."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise _odd(key, "a text")
        return value

    def token(self, key: str) -> int | None:
        """The number of a special token, of the whole file."""
        value = self._value(f"tokenizer.ggml.{key}", -1)
        if value == -1:
            return None
        if not isinstance(value, int) or not 0 <= value < self.length("tokenizer.ggml.tokens"):
            raise _odd(f"tokenizer.ggml.{key}", "the number of a token")
        return value

    def number(self, key: str, default: int | None = None) -> int:
        """A size. A list of equal sizes, one for each layer, is that size. Layers may have none,
        which is 0."""
        value = self._value(f"{self.architecture}.{key}", default)
        if isinstance(value, list) and len(found := set(map(str, value)) - {"0"}) == 1:
            value = next(one for one in value if str(one) in found)
        if value == default == 0:
            return 0
        if type(value) is not int or not 0 < value <= _MAX_DIMENSION:
            raise _odd(key, "a size")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A number. GGUF stores float32, and its shortest decimal is what the publisher wrote."""
        value = self._value(f"{self.architecture}.{key}", default)
        if not isinstance(value, int | float) or not np.isfinite(value):
            raise _odd(key, "a number")
        return float(str(np.float32(value)))

    def word(self, key: str, default: str) -> str:
        return self.text(f"{self.architecture}.{key}", default)

    def pattern(self, key: str, layers: int) -> list[bool] | None:
        """Whether each layer is of a kind; None if the file does not say. A number n stands for all
        layers but every n-th."""
        found = self._value(f"{self.architecture}.{key}", False)
        if found is False:
            return None
        if type(found) is int and found > 0:
            return [(layer + 1) % found != 0 for layer in range(layers)]
        if not isinstance(found, list) or len(found) < layers or not set(found) <= {True, False}:
            raise _odd(key, "a mark for each layer")
        return [bool(one) for one in found[:layers]]

    def has(self, key: str, layers: int) -> list[bool]:
        """Whether each layer has a size that is not 0."""
        found = self._value(f"{self.architecture}.{key}", None)
        if not isinstance(found, list):
            return [bool(found)] * layers
        if len(found) != layers:
            raise _odd(key, "a size for each layer")
        return [bool(one) for one in found]

    def length(self, key: str) -> int:
        """How many entries a list of the whole file has."""
        found = self._value(key, None)
        if not isinstance(found, TextCount):
            raise _odd(key, "a list of texts")
        return found.count

    def _value(self, key: str, default: object) -> object:
        if key in self._values:
            return self._values[key]
        if default is None:
            raise ModelUnavailable(f"it lacks the metadata key {key}: fetch it again")
        return default


def _odd(key: str, wanted: str) -> ModelUnavailable:
    return ModelUnavailable(f"its metadata key {key} is not {wanted}: fetch it again")
