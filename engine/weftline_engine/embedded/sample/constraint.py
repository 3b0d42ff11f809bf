"""What an output must be, as the engine sees it: a mask over the vocabulary for each next token.

The engine knows no grammar; whoever runs it passes `Grammars`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from weftline_engine.embedded.memory import put


class BadConstraint(Exception):
    """A constraint cannot be kept; the message is one sentence for the user."""


class Matcher(Protocol):
    """How far an output has come in its constraint."""

    @property
    def ended(self) -> bool:
        """Whether nothing may follow but the end."""
        ...

    @property
    def error(self) -> str:
        """Why it cannot go on; empty while it can."""
        ...


class Grammars(Protocol):
    """Reads constraints (the JSON text of SamplingParams.constraint) and follows outputs."""

    def compile(self, constraint: str) -> Matcher:
        """Raises BadConstraint."""
        ...

    def masks(self, matchers: Sequence[Matcher]) -> npt.NDArray[np.int32]:
        """Which tokens may come next, a bit each, the lowest first: (matchers, words)."""
        ...

    def advance(self, matchers: Sequence[Matcher], tokens: Sequence[int]) -> None:
        """Each of these outputs has one more token."""
        ...


class NoGrammars:
    """Refuses every constraint."""

    def compile(self, constraint: str) -> Matcher:
        raise BadConstraint("this engine follows no constraints; install llguidance beside it")

    def masks(self, matchers: Sequence[Matcher]) -> npt.NDArray[np.int32]:
        raise AssertionError("there is no matcher")

    def advance(self, matchers: Sequence[Matcher], tokens: Sequence[int]) -> None:
        raise AssertionError("there is no matcher")


def forbid(logits_RV: Tensor, rows: Sequence[int], masks_RW: npt.NDArray[np.int32]) -> None:
    """Set to -inf in these rows what their masks (32 tokens a word W) do not allow."""
    bits = np.unpackbits(masks_RW.view(np.uint8), axis=1, bitorder="little")
    allowed_RV = put(bits[:, : logits_RV.shape[1]], logits_RV.device).bool()
    index_R = put(rows, logits_RV.device)
    logits_RV[index_R] = logits_RV[index_R].masked_fill(~allowed_RV, float("-inf"))
