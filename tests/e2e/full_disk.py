"""A disk that is full: files that cannot grow, and documents that do not fit into them."""

from __future__ import annotations

import random
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MIB = 1 << 20
FULL = re.compile(r"disk|File too large", re.IGNORECASE)


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file of this process grows beyond `size` bytes. Python ignores the signal of that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def documents(count: int) -> list[dict[str, Any]]:
    """Documents of 10 kB, which can hardly be compressed."""
    chance = random.Random(7)
    return [
        {"id": f"m{n}", "text": chance.randbytes(5000).hex(), "metadata": {"of": "many"}}
        for n in range(count)
    ]
