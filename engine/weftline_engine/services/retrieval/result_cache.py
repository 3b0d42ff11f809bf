"""The results of equal items, so that each is computed once: an embedding cache by content hash.

Entries are salted by tenant: no tenant can learn from a fast answer what another has embedded.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from typing import Any

# The most results that are kept: 25 MB with the vectors of MiniLM. It also helps for stores of more
# texts, because equal texts often come soon after each other: in one upload or one conversation.
KEPT = 16_384

Key = tuple[str, str, bytes | int]  # salt, kind and content; or an op, kind and item number


class Results:
    """The last `most` results by salt, kind and content; 0 keeps none."""

    def __init__(self, most: int = KEPT) -> None:
        self._most = most
        self._found: OrderedDict[Key, Any] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    @staticmethod
    def key(salt: str, kind: str, payload: Any) -> Key:
        """The key of a text, or of a pair of texts."""
        content = json.dumps(payload, ensure_ascii=False).encode("utf-8", "surrogatepass")
        return salt, kind, hashlib.blake2b(content, digest_size=16).digest()

    def get(self, key: Key) -> Any | None:
        """The result of an equal item; None if it is not known."""
        if (found := self._found.get(key)) is not None:
            self._found.move_to_end(key)
        return found

    def put(self, key: Key, result: Any) -> None:
        """Keep a result. The least recently used one is dropped if there are too many."""
        if not self._most:
            return
        self._found[key] = result
        self._found.move_to_end(key)
        if len(self._found) > self._most:
            self._found.popitem(last=False)
