"""What the advisor may cost: a share of the calls, looked at in runs of consecutive ones.

A unit is a segment of a prompt, an input or a tool; looking at one takes 2 to 4 us on an AMD EPYC
with AVX2 only. Each call earns UNITS_EACH, so that a call costs less than 20 us on average.
"""

from __future__ import annotations

from dataclasses import dataclass

UNITS_EACH = 4  # that each call earns
UNITS_SAVED = 8000  # the most that is saved, and what a server begins with: some 300 calls
UNITS_AGAIN = 2000  # what must be saved before calls are looked at again
UNITS_OF_CALL = 8  # that a call costs besides its segments
UNIT_CHARS = 2000  # of text that are compared in the time of one segment


@dataclass(slots=True)
class Allowance:
    """The units that are left.

    Where they are used up, no call is looked at until UNITS_AGAIN are saved. Then come many calls
    in a row, since a prompt is compared with the one before it.
    """

    _left: int = UNITS_SAVED
    _is_used_up: bool = False

    def spend(self, segments: int, chars: int) -> bool:
        """Count a call, and return whether it may be looked at."""
        self._left = min(UNITS_SAVED, self._left + UNITS_EACH)
        units = UNITS_OF_CALL + segments + chars // UNIT_CHARS
        if self._is_used_up and self._left < UNITS_AGAIN:
            return False
        self._is_used_up = units > self._left
        if self._is_used_up:
            return False
        self._left -= units
        return True
