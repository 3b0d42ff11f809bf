"""The calls of a tool engine: which of them have begun, and their observations."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# The calls of which a tool engine knows that they have begun. It survives the engine's restarts.
MOST_BEGUN = 100_000


@dataclass(frozen=True, slots=True)
class Observation:
    """The text that the model gets as a call's result. `rejected`: the tool refused the call."""

    content: str
    is_error: bool = False
    rejected: bool = False

    def value(self) -> dict[str, Any]:
        return {"content": self.content, "is_error": self.is_error, "rejected": self.rejected}

    @staticmethod
    def of(frame: Mapping[str, Any]) -> Observation:
        """What a call's process answered. Raises ValueError for a frame that is no answer."""
        match frame:
            case {"result": str(text)}:
                return Observation(text)
            case {"result": value}:
                return Observation(json.dumps(value, ensure_ascii=False))
            case {"error": str(text)}:
                return Observation(text, is_error=True)
            case {"rejected": str(text)}:
                return Observation(text, is_error=True, rejected=True)
        raise ValueError("the tool's process sent what is no result")


def failed(what: str, effects: str) -> Observation:
    """The observation of a call that may or may not have run."""
    unknown = "" if effects == "none" else " It may have run: check before you call it again."
    return Observation(f"{what}.{unknown}", is_error=True)


class BegunCalls:
    """The calls that have begun. A call begins at most once for each attempt and its arguments.

    A tool of effects "once" begins at most once for all attempts.
    """

    def __init__(self) -> None:
        self._calls: OrderedDict[tuple[str, int, str], None] = OrderedDict()
        self._once: OrderedDict[str, None] = OrderedDict()

    def begin(self, op: str, attempt: int, arguments: str, effects: str) -> bool:
        """Note that a call begins. False if it must not."""
        key = op, attempt, hashlib.sha256(arguments.encode("utf-8", "replace")).hexdigest()
        if key in self._calls or (effects == "once" and op in self._once):
            return False
        self._calls[key] = None
        if effects == "once":
            self._once[op] = None
        for known in (self._calls, self._once):
            while len(known) > MOST_BEGUN:
                known.popitem(last=False)
        return True
