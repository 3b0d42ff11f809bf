"""How much may run beside a call that somebody waits for, from the engine's own profile.

Parrot's Figure 10: a step that decodes takes longer the more tokens are in flight, since the KV of
all of them is read. The engine measures that when it starts; here it becomes a number of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

# A token each 40 ms is what Parrot's experiments grant a chat, and faster than anybody reads.
TOKEN_S = 0.040
# Where even a small step takes that long, others may make it so many times longer.
SLOWER = 2.0


def latency_tokens(profile: Sequence[tuple[int, float]]) -> int | None:
    """The most tokens in flight with which a step keeps to TOKEN_S; None where nothing is known, or
    where more tokens make no step longer. `profile` is Description.step_profile.

    Between two points of the profile and beyond the last one it is taken to be a line.
    """
    if len(profile) < 2:
        return None
    longest = max(TOKEN_S, SLOWER * profile[0][1])
    for (tokens, seconds), (more, longer) in pairwise(profile):
        if seconds <= longest < longer:
            return round(tokens + (more - tokens) * (longest - seconds) / (longer - seconds))
    (tokens, seconds), (more, longer) = profile[0], profile[-1]
    if longer <= seconds:
        return None
    return round(more + (more - tokens) * (longest - longer) / (longer - seconds))
