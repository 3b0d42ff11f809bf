"""How long a model waits for its server."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import openai


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that one attempt of a call may take, and the number of attempts after the first."""

    seconds: float = math.inf
    retries: int = openai.DEFAULT_MAX_RETRIES

    @staticmethod
    def of(timeout: Any, max_retries: int | None) -> Patience:
        """The patience that ChatOpenAI's `timeout` (in any form) and `max_retries` stand for."""
        if isinstance(timeout, tuple):  # connect, read, …
            timeout = timeout[1]
        seconds = getattr(timeout, "read", timeout)
        return Patience(
            math.inf if seconds is None else float(seconds),
            openai.DEFAULT_MAX_RETRIES if max_retries is None else max_retries,
        )
