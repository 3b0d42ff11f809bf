"""Tokenizers of models, each read once from its file."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

# Imported where it is used, because the session must run where it is not installed.
if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST = 4  # tokenizers that are kept; one of 150,000 words holds about 100 MB

_READING = ThreadPoolExecutor(1, "tokenizer")


def tokenizer_of(path: str) -> Tokenizer:
    """The tokenizer in a file. It is read again if the file has changed."""
    found = os.stat(path)
    return _read(path, found.st_mtime_ns, found.st_size)


def read_ahead(path: Path) -> None:
    """Begin to read a tokenizer while its engine starts: one of 150,000 words takes 0.7 s.

    An error is raised where the tokenizer is needed. It is not reported here.
    """
    _READING.submit(tokenizer_of, str(path))


@lru_cache(MOST)
def _read(path: str, changed_ns: int, size: int) -> Tokenizer:
    """`changed_ns` and `size` tell one file at a path from the next."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(path)
