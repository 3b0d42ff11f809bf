"""How long outputs become, learned for each tenant from the outputs of its calls that are alike.

Calls are alike by what only this server has: the template, the tokens of the prompt, the turn, the
tool that was called last, and the words of the values. A client's `max_tokens` is a bound and often
far from the length, so it stays the bound, and nothing is cut by a prediction. Predictions are used
for a tenant whose outputs they tell better than the bounds do. The code has no clock.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]

# The newest outputs of a tenant that are remembered, with these dimensions for their words. That is
# 40 KB for each of at most MOST_TENANTS; beyond that the tenant that was seen longest ago goes.
OUTPUTS, WORDS = 256, 32
MOST_TENANTS = 256
# Nothing is predicted from fewer outputs than FEWEST. The NEAREST ones tell a length.
FEWEST, NEAREST = 10, 32
# The distance of two calls: for another template, tool or turn, for a size that is twice as large
# (up to three times that), and for words that have nothing in common.
OTHER = np.array([4.0, 2.0, 0.5], np.float32)
TWICE, MOST_TWICE, OTHER_WORDS = 3.0, 1.5, 4.0
# Each later output adds so much: of equal calls the newest ones are the nearest, so that a changed
# template is followed after NEAREST outputs.
OLDER = np.float32(1e-3)
# An output at distance 1 counts as much as exp(-SHARP).
SHARP = 2.0
# The share of the outputs that is not longer than `most`.
LIKELY = 0.9
# The newest output has a weight of one in this many in the measured errors.
MEMORY = 200.0
# How near a prediction is called exact, in tokens: LAMPS reports Acc-5 and Acc-15.
NEAR = (5, 15)


@dataclass(frozen=True, slots=True)
class Clues:
    """What is known of a call before it runs: `turn` messages stand before the output, the last
    `tool` of which a call is known, and the `words` of the values."""

    template: str
    size: int
    turn: int = 0
    tool: str = ""
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Expected:
    """The tokens of an output: as many as `likely`, and at `most` so many nine times of ten."""

    likely: int
    most: int


@dataclass(slots=True)
class Exactness:
    """Running means over the newest predictions: the shares that are at most 5 and 15 tokens off,
    the tokens that they are off, and the tokens that the bounds were off."""

    count: int = 0
    near: tuple[float, ...] = (0.0,) * len(NEAR)
    error: float = 0.0
    error_of_bound: float = 0.0

    def learn(self, told: int, bound: int, length: int) -> None:
        self.count += 1
        weight, off = 1 / min(self.count, MEMORY), abs(told - length)
        seen = zip(self.near, NEAR, strict=True)
        self.near = tuple(mean + weight * ((off <= most) - mean) for mean, most in seen)
        self.error += weight * (off - self.error)
        self.error_of_bound += weight * (abs(bound - length) - self.error_of_bound)


class Outputs:
    """The newest outputs of a tenant: what was known of each call, and its length."""

    def __init__(self) -> None:
        self.exactness = Exactness()
        self._count = 0
        self._names = np.zeros((OUTPUTS, len(OTHER)), np.int64)
        self._sizes = np.zeros(OUTPUTS, np.float32)
        self._words = np.zeros((OUTPUTS, WORDS), np.float32)
        self._lengths = np.zeros(OUTPUTS, np.float32)

    def learn(self, clues: Clues, bound: int, length: int) -> Expected | None:
        """Note the length of an output. Return what was told of it."""
        if (told := self.expect(clues, bound)) is not None:
            self.exactness.learn(told.likely, bound, length)
        at = self._count % OUTPUTS
        self._names[at], self._sizes[at], self._words[at] = _numbers(clues)
        self._lengths[at] = length
        self._count += 1
        return told

    def expect(self, clues: Clues, bound: int) -> Expected | None:
        """The median of the nearest outputs, and how long LIKELY of them are, weighted by how near
        they are."""
        known = min(self._count, OUTPUTS)
        if known < FEWEST:
            return None
        names, size, words = _numbers(clues)
        apart = (self._names[:known] != names) @ OTHER
        apart += TWICE * np.minimum(np.abs(self._sizes[:known] - size), MOST_TWICE)
        apart += OTHER_WORDS * (1 - self._words[:known] @ words)
        apart += OLDER * ((self._count - 1 - np.arange(known)) % OUTPUTS)
        nearest = np.argsort(apart)[:NEAREST]
        order = nearest[np.argsort(self._lengths[nearest])]
        weights = np.cumsum(np.exp(-SHARP * (apart[order] - apart[nearest[0]])))
        told = np.searchsorted(weights, [weights[-1] / 2, weights[-1] * LIKELY])
        likely, most = self._lengths[order[told]]
        return Expected(min(int(likely), bound), min(int(most), bound))


def _numbers(clues: Clues) -> tuple[tuple[int, int, int], float, Floats]:
    """The clues as numbers: names, the logarithm of the size, and a vector of length 1 or 0 to
    which each word adds 1 or takes 1 from a place that its hash tells."""
    names = (_hash(clues.template), _hash(clues.tool), min(clues.turn, 16))
    words = np.zeros(WORDS, np.float32)
    for word in set(clues.words):
        code = _hash(word)
        words[code % WORDS] += 1.0 if code & 1024 else -1.0
    length = float(np.linalg.norm(words))
    return names, float(np.log2(max(1, clues.size))), words / length if length else words


def _hash(text: str) -> int:
    return zlib.crc32(text.encode(errors="replace"))


class Lengths:
    """The outputs of all tenants. No tenant learns from another's."""

    def __init__(self) -> None:
        self.exactness = Exactness()  # of all tenants together
        self._tenants: dict[str, Outputs] = {}  # the last one that has learned is the last

    def learn(self, tenant: str, clues: Clues, bound: int, length: int) -> None:
        """Note that an output of at most `bound` tokens had `length` tokens."""
        if length < 1:
            return
        found = self._tenants.pop(tenant, None) or Outputs()
        if (told := found.learn(clues, bound, length)) is not None:
            self.exactness.learn(told.likely, bound, length)
        self._tenants[tenant] = found
        while len(self._tenants) > MOST_TENANTS:
            del self._tenants[next(iter(self._tenants))]

    def expect(self, tenant: str, clues: Clues, bound: int) -> Expected | None:
        """The number of tokens that an output of at most `bound` tokens will have; None where the
        bound has told more."""
        found = self._tenants.get(tenant)
        if found is None or found.exactness.error >= found.exactness.error_of_bound:
            return None
        return found.expect(clues, bound)
