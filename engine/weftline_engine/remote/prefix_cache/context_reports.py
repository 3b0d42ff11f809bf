"""Turns a server's KV events into reports of what its cache holds of each context."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from weftline_engine import api
from weftline_engine.remote.openai.remote import Outbox
from weftline_engine.remote.prefix_cache.event_feed import EventAddresses, EventFeed
from weftline_engine.remote.prefix_cache.held_blocks import MOST_BLOCKS, MOST_CONTEXTS, HeldBlocks
from weftline_engine.remote.prefix_cache.kv_events import KVEvent

# Blocks that are remembered for each block of the cache: those that it has and as many that it had.
REMEMBERED = 2


class ContextReports:
    """Follows the contexts of ops, and puts a ContextMoved in the outbox for each change."""

    def __init__(self, outbox: Outbox, runs: Callable[[str], bool]) -> None:
        self._outbox = outbox
        self._runs = runs  # whether the op of this id runs: its context is reported at its end
        self._held = HeldBlocks()
        self._makers: dict[str, tuple[str, int]] = {}  # contexts → op and attempt that made it
        self._feed: EventFeed | None = None

    def listen(
        self,
        addresses: EventAddresses,
        blocks: int | None,
        *,
        salts: bool = True,
        tails: bool = False,
    ) -> None:
        """Listen to a server whose cache has so many blocks (None: unknown), whose events name
        `salts` or not, and whose model goes on at few places if it has `tails`."""
        most = MOST_BLOCKS if blocks is None else REMEMBERED * blocks
        self._held = HeldBlocks(most, salts=salts, tails=tails)
        self._feed = EventFeed(addresses, self.heard)

    @property
    def listens(self) -> bool:
        """Whether the server's events are known."""
        return self._feed is not None

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()

    def follow(self, op: api.Op, tokens: tuple[int, ...]) -> None:
        """Follow the context of an op, which now has these tokens."""
        if self._feed is None:
            return
        self._makers.pop(op.context, None)
        self._makers[op.context] = (op.id, op.attempt)
        while len(self._makers) > MOST_CONTEXTS:
            del self._makers[next(iter(self._makers))]
        self._held.watch(op.context, tokens, op.salt)

    def heard(self, events: Iterable[KVEvent]) -> None:
        """Take in events, and report what has changed."""
        self._held.apply(events)
        self.report()

    def report(self) -> None:
        """Report the contexts that have changed, except those whose op runs."""
        for context, held in self._held.changes(
            lambda context: self._runs(self._makers[context][0])
        ):
            head = self._outbox.head(*self._makers[context])
            self._outbox.put(
                api.ContextMoved(
                    **head,
                    context=context,
                    residency=held.residency,
                    tokens=held.tokens,
                    places=held.places,
                )
            )
