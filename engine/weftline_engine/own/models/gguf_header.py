"""Reads the header of a GGUF file: its key-value pairs, and where its tensors lie.

Every number in it is checked against the size of the file before anything is read or allocated. The
library gguf checks little: a list of 2^60 numbers in a short file keeps it busy for ever. Lists of
texts, such as a vocabulary, are only counted, because a tokenizer reads them.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from weftline_engine.own.models.name import ModelUnavailable

# The most of each that is read. DeepSeek-V3 has 1,086 tensors; files have about 50 pairs.
MOST_TENSORS = 1 << 16
MOST_PAIRS = 1 << 12
MOST_TEXT = 1 << 24  # bytes of a text outside lists, such as a chat template
MOST_NUMBERS = 1 << 20  # of a list
_MOST_DIMENSIONS = 4  # ggml's own bound
_VERSIONS = (2, 3)
_TEXT, _LIST = 8, 9
# struct's letters of the types of scalars.
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class TextCount:
    """A list of texts, of which only the number is known, and where it begins in the file."""

    count: int
    offset: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's type, its shape with the rows first, and its place in the file in bytes."""

    kind: gguf.GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class GgufHeader:
    """The pairs and tensors of a mapped file. Raises ModelUnavailable without the file's name.

    The tensors are checked when they are first asked for, because an engine that reads only the
    tokenizer of a file takes all types.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelUnavailable("it is not a GGUF file")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 4
        (version,) = self._numbers("I", 1)
        if version not in _VERSIONS:
            raise ModelUnavailable(
                f"its GGUF version is {version}, and versions 2 and 3 of little-endian files are "
                "read: convert it again with llama.cpp"
            )
        tensors, pairs = self._numbers("Q", 2)
        _at_most("tensors", tensors, MOST_TENSORS)
        _at_most("metadata keys", pairs, MOST_PAIRS)
        self.values: dict[str, Any] = {}
        for _ in range(pairs):
            key = self._text()
            (kind,) = self._numbers("I", 1)
            _once(key, self.values)
            self.values[key] = self._value(key, kind)
        self._stated = [self._tensor_info() for _ in range(tensors)]
        self._begin = self._aligned()

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        """The tensors by name, each in the file and of a type that gguf knows."""
        found: dict[str, StoredTensor] = {}
        for name, shape, kind, offset in self._stated:
            _once(name, found)
            found[name] = self._placed(name, shape, kind, offset)
        return found

    def texts(self, key: str) -> list[str]:
        """A list of texts; empty if the file has no such list."""
        found = self.values.get(key)
        if not isinstance(found, TextCount):
            return []
        self._at = found.offset
        return [self._text() for _ in range(found.count)]

    def values_of(
        self, tensor: StoredTensor, part: int = 0, parts: int = 1
    ) -> npt.NDArray[np.float32]:
        """The numbers of a tensor, or of one of the `parts` of which it consists. Raises
        NotImplementedError for a type that gguf cannot widen."""
        shape = tensor.shape if parts == 1 else tensor.shape[1:]
        nbytes = tensor.nbytes // parts
        raw = np.frombuffer(self._map, np.uint8, nbytes, tensor.offset + part * nbytes)
        rows = raw.reshape(*shape[:-1], -1)
        found: npt.NDArray[np.float32] = gguf.dequantize(rows, tensor.kind)
        return found.reshape(shape)

    def _numbers(self, letter: str, count: int) -> tuple[Any, ...]:
        size = struct.calcsize(f"<{letter}") * count
        self._need(size)
        found = struct.unpack_from(f"<{count}{letter}", self._map, self._at)
        self._at += size
        return found

    def _need(self, size: int) -> None:
        if size > len(self._map) - self._at:
            raise ModelUnavailable(
                "it is truncated or damaged, it ends in its header: fetch it again"
            )

    def _text(self, most: int = MOST_TEXT) -> str:
        (size,) = self._numbers("Q", 1)
        self._need(size)
        if size > most:
            raise ModelUnavailable(f"it holds a text of {size} bytes, and {most} are read")
        raw = self._map[self._at : self._at + size]
        self._at += size
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise ModelUnavailable(
                "it is truncated or damaged, a text is not UTF-8: fetch it again"
            ) from None

    def _value(self, key: str, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind != _LIST:
            return self._numbers(_letter(key, kind), 1)[0]
        (kind,) = self._numbers("I", 1)
        (count,) = self._numbers("Q", 1)
        if kind != _TEXT:
            self._need(count)  # each takes a byte or more
            _at_most(f"numbers in {key[:60]}", count, MOST_NUMBERS)
            return list(self._numbers(_letter(key, kind), count))
        self._need(8 * count)
        begin = self._at
        for _ in range(count):
            (size,) = self._numbers("Q", 1)
            self._need(size)
            self._at += size
        return TextCount(count, begin)

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, type and offset of the next tensor."""
        name = self._text()
        (dimensions,) = self._numbers("I", 1)
        _at_most(f"dimensions in {name[:60]}", dimensions, _MOST_DIMENSIONS)
        shape = tuple(reversed(self._numbers("Q", dimensions)))  # the fastest one comes first
        (kind,) = self._numbers("I", 1)
        (offset,) = self._numbers("Q", 1)
        return name, shape, kind, offset

    def _aligned(self) -> int:
        """Where the tensors begin."""
        step = self.values.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(step, int) or step < 1 or step & (step - 1):
            raise ModelUnavailable("its general.alignment is no power of two: fetch it again")
        return -(-self._at // step) * step

    def _placed(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> StoredTensor:
        """The tensor, if it lies in the file."""
        try:
            known = gguf.GGMLQuantizationType(kind)
            weights, size = gguf.GGML_QUANT_SIZES[known]
        except (ValueError, KeyError):
            raise ModelUnavailable(
                f"it stores {name[:60]} in the type {kind}, which is not known here: take another "
                "quantisation of the model"
            ) from None
        columns = shape[-1] if shape else 1
        if columns % weights:
            raise ModelUnavailable(
                f"its {name[:60]} has rows of {columns} weights, which are no whole number of "
                f"{known.name} blocks: fetch it again"
            )
        nbytes = prod(shape) // weights * size
        begin = self._begin + offset
        if begin + nbytes > len(self._map):
            raise ModelUnavailable(
                f"it is truncated or damaged, it ends before its tensor {name[:60]}: fetch it again"
            )
        return StoredTensor(known, shape, begin, nbytes)


def _letter(key: str, kind: int) -> str:
    if kind not in _SCALARS:
        raise ModelUnavailable(
            f"its metadata key {key[:60]} has a value of type {kind}, which is not read: fetch it "
            "again"
        )
    return _SCALARS[kind]


def _at_most(what: str, count: int, most: int) -> None:
    if count > most:
        raise ModelUnavailable(f"it states {count} {what}, and at most {most} are read")


def _once(name: str, known: Mapping[str, Any]) -> None:
    if name in known:
        raise ModelUnavailable(f"it holds {name[:60]} twice: fetch it again")
