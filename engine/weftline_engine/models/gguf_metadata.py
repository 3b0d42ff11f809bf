"""The key-value pairs of a GGUF file, with checked types."""

from __future__ import annotations

from typing import Any

import numpy as np

from weftline_engine.models.name import ModelUnavailable

_MAX_DIMENSION = 1 << 20


class Metadata:
    """The pairs of a file. Keys of the architecture are given without its name.

    A missing key is refused by its name. A value of another type is a ValueError.
    """

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.architecture = self.text("general.architecture")

    def text(self, key: str, default: str | None = None) -> str:
        """A string, of the whole file."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise ValueError(f"{key} is not a string")
        return value

    def token(self, key: str) -> int | None:
        """The number of a special token, of the whole file."""
        value = self._value(f"tokenizer.ggml.{key}", -1)
        if not isinstance(value, int) or value >= 1 << 32:
            raise ValueError(f"{key} is no token")
        return value if value >= 0 else None

    def number(self, key: str, default: int | None = None) -> int:
        """A size. A list of equal sizes, one for each layer, is that size."""
        value = self._value(f"{self.architecture}.{key}", default)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        if value == default == 0:
            return 0
        if not isinstance(value, int) or not 0 < value <= _MAX_DIMENSION:
            raise ValueError(f"{key} is not a size")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A number. GGUF stores float32, and its shortest decimal is what the publisher wrote."""
        value = self._value(f"{self.architecture}.{key}", default)
        if not isinstance(value, int | float) or not np.isfinite(value):
            raise ValueError(f"{key} is not a number")
        return float(str(np.float32(value)))

    def word(self, key: str, default: str) -> str:
        """A string of the architecture."""
        return self.text(f"{self.architecture}.{key}", default)

    def length(self, key: str) -> int:
        """How many entries a list of the whole file has."""
        field = self._reader.get_field(key)
        if field is None:
            raise ModelUnavailable(f"it lacks the metadata key {key}: fetch it again")
        return len(field.data)

    def _value(self, key: str, default: object) -> object:
        field = self._reader.get_field(key)
        if field is not None:
            return field.contents()
        if default is None:
            raise ModelUnavailable(f"it lacks the metadata key {key}: fetch it again")
        return default
