"""Constraints on outputs, as the engine sees them: a mask over the vocabulary for each next token.

The engine cannot read constraints itself. The process that runs it passes `Grammars`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from weftline_engine.own.embedded.device import Array, ComputeDevice


class BadConstraint(Exception):
    """A constraint cannot be enforced. The message is one sentence for the user."""


class Matcher(Protocol):
    """The state of an output within its constraint."""

    @property
    def ended(self) -> bool:
        """Whether the output is complete, so that only the end may follow."""
        ...

    @property
    def error(self) -> str:
        """Why the output cannot continue. Empty while it can."""
        ...

    def forced(self) -> Sequence[int]:
        """The next tokens that the constraint determines completely. Empty if there is a choice."""
        ...

    def allowed(self, tokens: Sequence[int]) -> int:
        """How many of these tokens, from the first on, may come next in this order."""
        ...


class Grammars(Protocol):
    """Compiles constraints, the JSON text of SamplingParams.constraint, and follows outputs."""

    def compile(self, constraint: str) -> Matcher:
        """A matcher for an output that has not begun. Raises BadConstraint."""
        ...

    def masks(self, matchers: Sequence[Matcher]) -> npt.NDArray[np.int32]:
        """The allowed next tokens as bits, the lowest first: (matchers, words of 32 bits)."""
        ...

    def advance(self, matchers: Sequence[Matcher], tokens: Sequence[int]) -> None:
        """Add one token to each of these outputs."""
        ...


class NoGrammars:
    """Refuses every constraint."""

    def compile(self, constraint: str) -> Matcher:
        raise BadConstraint("this engine follows no constraints; install llguidance beside it")

    def masks(self, matchers: Sequence[Matcher]) -> npt.NDArray[np.int32]:
        raise AssertionError("there is no matcher")

    def advance(self, matchers: Sequence[Matcher], tokens: Sequence[int]) -> None:
        raise AssertionError("there is no matcher")


def forbid(
    logits_RV: Array, rows: Sequence[int], masks_RW: npt.NDArray[np.int32], device: ComputeDevice
) -> None:
    """Set to -inf the logits that the rows' masks do not allow; W = words of 32 tokens."""
    allowed_RV = device.rows.bits(masks_RW, logits_RV.shape[1])
    index_R = device.put(rows)
    logits_RV[index_R] = device.xp.where(allowed_RV, logits_RV[index_R], float("-inf"))
