"""What the engine says of itself on stderr while it loads."""

from __future__ import annotations

import sys


def say(words: str) -> None:
    """Write a line."""
    print(f"engine: {words}", file=sys.stderr, flush=True)
