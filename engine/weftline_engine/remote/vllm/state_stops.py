"""Where our scheduler ends parts of a prompt, so that vLLM keeps the state there. It is pure.

vLLM keeps a state where a part of a prompt ends with a block, and only if that is the prompt's last
whole block or the request's "shared prefix boundary". It sets this boundary itself where the keys
and values of another prompt are cached and its state is not, which is too late for that prompt.
Between two parts the next stop is set in its place.
"""

from __future__ import annotations

from typing import Any

MOST_STOPS = 64  # of one request; more are of no use, and come from nobody


class StateStops:
    """The stops of the requests in vLLM, in blocks of so many tokens."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._stops: dict[str, set[int]] = {}  # by request

    def __len__(self) -> int:
        return len(self._stops)

    def add(self, request: str, borders: Any) -> None:
        """Note the borders of a request, as its client has sent them."""
        if isinstance(borders, list):
            ends = (one // self._block for one in borders[:MOST_STOPS] if isinstance(one, int))
            self._stops[request] = {end * self._block for end in ends if end > 0}

    def next(self, request: str, start: int, boundary: int) -> int:
        """The first stop of a request behind `start`, or 0. `boundary` is the one that it has now:
        the last answer, or vLLM's own."""
        stops = self._stops.get(request)
        if stops is None:
            return boundary
        if boundary > start:
            stops.add(boundary)
        return min((stop for stop in stops if stop > start), default=0)

    def end(self, request: str) -> None:
        self._stops.pop(request, None)
