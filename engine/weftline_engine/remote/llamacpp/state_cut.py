"""Where a model's state can be cut: which beginnings of the tokens of a slot can be continued.

Attention keeps a key and a value for each token, so a state can be cut anywhere. A recurrent
state, or one of a short convolution, has only its end. llama-server keeps copies of it
(checkpoints) in the slot, near the end of each prompt. A file of a slot holds no checkpoints.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from typing import Any

# llama-server makes checkpoints so many tokens before a prompt's end, and where a prompt goes on in
# a slot behind the first of them. 512 is a batch.
CHECKPOINTS_BACK = (512 + 4, 4)
# A slot keeps so many. Those that are within SPACING tokens of another are dropped first, then the
# oldest.
MOST_CHECKPOINTS = 32
SPACING = 127

# Settings in a GGUF file that only models with a recurrent state, or with windows, have.
_RECURRENT = (".ssm.state_size", ".shortconv.l_cache", ".wkv.head_size")
_WINDOW = ".attention.sliding_window"


class StateCut(Enum):
    """Where a state can be cut."""

    ANYWHERE = "anywhere"
    # With --swa-full. A slot has the keys of all tokens, and a file of it those of the last window.
    IN_SLOTS = "anywhere in a slot, and at the end of a file"
    KEPT = "at its end and at checkpoints"
    # A file of a slot cannot be continued: llama-server wants one token more than the window, and
    # writes the window.
    WINDOWS = "at checkpoints, and files cannot be continued"

    @property
    def copies(self) -> bool:
        """Whether a slot that was read from a file can be continued."""
        return self is not StateCut.WINDOWS

    @property
    def fills_first(self) -> bool:
        """Whether a file must end where prompts part, so that they are filled up to there."""
        return self in (StateCut.IN_SLOTS, StateCut.KEPT)

    @property
    def of_files(self) -> StateCut:
        """Where a state that was read from a file can be cut."""
        return StateCut.KEPT if self is StateCut.IN_SLOTS else self

    def usable(self, shared: int, held: int, wanted: int, checkpoints: Sequence[int] = ()) -> int:
        """How many tokens of a prompt of `wanted` tokens need not be computed.

        The prompt and the `held` tokens of a state have the first `shared` in common.
        """
        if self in (StateCut.ANYWHERE, StateCut.IN_SLOTS) or shared == held < wanted:
            return shared
        return max((one for one in checkpoints if one <= shared), default=0)


def cut_of(metadata: Mapping[str, Any]) -> StateCut:
    """Where the states of a model can be cut, by its settings in the GGUF file."""
    if any(key.endswith(_RECURRENT) for key in metadata):
        return StateCut.KEPT
    windows = (value for key, value in metadata.items() if key.endswith(_WINDOW))
    return StateCut.WINDOWS if any(windows) else StateCut.ANYWHERE


def after_prompt(
    checkpoints: Sequence[int], found: int, prompt: int, stops: Sequence[int] = ()
) -> tuple[int, ...]:
    """The checkpoints of a slot that has computed a prompt of so many tokens, of which it `found`
    the first ones. States were kept at the `stops`."""
    made = {prompt - back for back in CHECKPOINTS_BACK if prompt - back > found}
    made |= {stop for stop in stops if stop > found}
    if found > 0 and prompt - found <= CHECKPOINTS_BACK[0]:
        made.add(found)
    kept = [one for one in checkpoints if one <= found and one not in made]
    for one in sorted(made):
        while len(kept) + 1 >= MOST_CHECKPOINTS and (gone := _near(kept, made)) is not None:
            kept.remove(gone)
        kept = [*kept, one][-MOST_CHECKPOINTS:]
    return tuple(sorted(kept))


def _near(kept: Sequence[int], made: Container[int]) -> int | None:
    """The first checkpoint of an earlier prompt that is near the one before it."""
    pairs = ((one, last) for last, one in pairwise(kept))
    return next((one for one, last in pairs if one not in made and one <= last + SPACING), None)
