"""How many tokens may be in flight beside a call that a user waits for, from the engine's profile.

Parrot's Figure 10: a decode step takes longer the more tokens are in flight, because it reads the
KV cache of all of them. The engine measures this when it starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from weftline_engine.api import ITL_S, SLOWER


def latency_tokens(profile: Sequence[tuple[int, float]]) -> int | None:
    """Return the most tokens in flight with which a step takes at most ITL_S.

    `profile` is Description.step_profile. It is interpolated between its points and extrapolated
    beyond the last one, linearly. None means no limit: the profile has fewer than two points, or
    its steps do not become longer.
    """
    if len(profile) < 2:
        return None
    longest = max(ITL_S, SLOWER * profile[0][1])
    for (tokens, seconds), (more, longer) in pairwise(profile):
        if seconds <= longest < longer:
            return round(tokens + (more - tokens) * (longest - seconds) / (longer - seconds))
    (tokens, seconds), (more, longer) = profile[0], profile[-1]
    if longer <= seconds:
        return None
    return round(more + (more - tokens) * (longest - longer) / (longer - seconds))


def most_at_once(sizes: Iterable[tuple[int, int]]) -> int:
    """The most tokens that calls hold at once. `sizes` has the final size of each call, and how
    many of these tokens are still missing. All grow at the same rate, and each leaves at its size.

    So calls that began together are large together, and calls that are at different points of
    their outputs are not.
    """
    most = held = 0
    in_order = sorted(((left, size) for size, left in sizes), reverse=True)
    for count, (left, size) in enumerate(in_order, 1):
        held += size - left
        most = max(most, held + count * left)
    return most
