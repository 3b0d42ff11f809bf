"""JSON frames between a tool engine and the processes of its calls: a length, then JSON."""

from __future__ import annotations

import json
import struct
from typing import Any

HEADER = struct.Struct("!I")
MOST_BYTES = 8 << 20  # of one frame, and so of a tool's result


class BadFrame(Exception):
    """The received data is not a frame: it is too long, or not a JSON object."""


def encode(frame: dict[str, Any]) -> bytes:
    """The bytes of a frame. Raises BadFrame for values that are not JSON, or too many of them."""
    try:
        body = json.dumps(frame, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadFrame(f"it is not JSON: {error}") from None
    if len(body) > MOST_BYTES:
        raise BadFrame(f"it has {len(body):,} bytes, and {MOST_BYTES:,} are the most")
    return HEADER.pack(len(body)) + body


def length(header: bytes) -> int:
    """The length of the body that follows `header`. Raises BadFrame if it is over the limit."""
    (size,) = HEADER.unpack(header)
    if size > MOST_BYTES:
        raise BadFrame(f"it says that it has {size:,} bytes, and {MOST_BYTES:,} are the most")
    return int(size)


def decode(body: bytes) -> dict[str, Any]:
    """The frame in `body`. Raises BadFrame if it is no JSON object."""
    try:
        frame = json.loads(body)
    except (ValueError, RecursionError):
        raise BadFrame("it is no JSON") from None
    if not isinstance(frame, dict):
        raise BadFrame("it is no object")
    return frame
