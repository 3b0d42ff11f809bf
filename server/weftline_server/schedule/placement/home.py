"""Where a prefix that no engine has is computed, where several servers place calls on the engines.

Two servers may get calls with the same new prefix before either hears of the other. So they choose
in the same way: by rendezvous hashing (Thaler and Ravishankar 1998) over the engines that the call
costs little more on than on the cheapest one, weighted by these costs. No server has to ask another
one, and most prefixes keep their home when an engine comes or goes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from math import inf, log

# A home may cost this many tokens of load more than the cheapest engine. Servers know the loads of
# 0.1 s ago, so within that time all of them would choose the same cheapest engine.
HOME_TOKENS = 2048
_MASK = (1 << 64) - 1
_MIX = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio: odd, and its bits are spread


def home(prefix: str, engines: Iterable[tuple[float, str]]) -> int:
    """Which of the engines is the home of this prefix, by its place. Each has what the call costs
    there and its name; the cheapest comes first.
    """
    key = _number(prefix)
    best, best_drawn, least = 0, inf, -inf
    for place, (cost, name) in enumerate(engines):
        least = cost if place == 0 else least
        weight = 1.0 - (cost - least) / HOME_TOKENS
        if weight <= 0.0:
            break
        mixed = ((key ^ _number(name)) * _MIX) & _MASK
        mixed = ((mixed ^ (mixed >> 29)) * _MIX) & _MASK
        drawn = -log(((mixed >> 11) + 1) / (1 << 53)) / weight
        if drawn < best_drawn:
            best, best_drawn = place, drawn
    return best


@lru_cache(maxsize=65_536)
def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
