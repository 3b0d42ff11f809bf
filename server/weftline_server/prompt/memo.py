"""Keeps the newest results of a computation. Each is made once, also by several threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Memo(Generic[T]):
    """At most `most` results by their keys. The oldest is forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """The result of this key. A thread that asks while another one computes waits for it."""
        with self._lock:
            if key not in self._found:
                self._found[key] = compute()
                if len(self._found) > self._most:
                    self._found.popitem(last=False)
            return self._found[key]
