"""How long a model waits for its server."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import openai

from weftline.sdk.http import CONNECT_S


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


def connect_seconds(timeout: Any) -> float | None:
    """Seconds to open a connection by ChatOpenAI's `timeout`. None means no limit."""
    if timeout is None:
        return CONNECT_S
    if isinstance(timeout, tuple):
        return _seconds(timeout[0])
    return _seconds(getattr(timeout, "connect", timeout))


def _seconds(given: Any) -> float | None:
    return None if given is None else float(given)
