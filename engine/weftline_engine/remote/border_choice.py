"""The choice of the borders of a prompt at which a model's state is kept. It is pure."""

from __future__ import annotations

from collections.abc import Iterable


def chosen(
    borders: Iterable[int], taken: Iterable[int], *, least: int, most: int
) -> tuple[int, ...]:
    """At most `most` of the borders, of which the likeliest come first, in ascending order.

    Between two of them, or one and a place that is `taken`, there are at least `least` tokens.
    Fewer are computed sooner than a state is kept for them.
    """
    places, found = list(taken), list[int]()
    for border in borders:
        if len(found) == most:
            break
        if all(abs(border - place) >= least for place in places):
            places.append(border)
            found.append(border)
    return tuple(sorted(found))
