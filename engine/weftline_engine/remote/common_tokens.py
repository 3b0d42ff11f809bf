"""What the beginnings of two prompts have in common."""

from __future__ import annotations

from collections.abc import Sequence


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens the beginnings of both have in common. It compares slices, in C."""
    least, most = 0, min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    while most - least > 1:
        middle = (least + most) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle
    return least
