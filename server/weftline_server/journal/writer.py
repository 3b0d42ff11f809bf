"""The one thread that writes the store: it commits what has come since its last commit, at once.

While a commit syncs the disk the next one gathers, so a slow disk makes commits larger, not more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from weftline_server.journal.backend import SessionStore
from weftline_server.journal.fence import Fenced
from weftline_server.journal.records import Clock, Noted, encode
from weftline_server.journal.store import Append, Change, Drop

log = logging.getLogger("weftline.journal")

SYNC_S = 1.0  # between two syncs of a store with durability "batch"
RETRY_S = 0.5  # between two attempts while the file cannot be written
MOST_HELD = 64 << 20  # bytes of records that wait for space


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A record of a session that is not JSON yet."""

    session: int
    noted: Noted


@dataclass(frozen=True, slots=True)
class Sweep:
    """Delete what is too old."""

    now: float
    keys_s: float


Item = Change | SessionRecord | Sweep


@dataclass(frozen=True, slots=True)
class WriteProgress:
    """What the thread tells: `done` entries are on disk; `error` says why no more are.

    Of the sessions in `lost` records were given up, since too many waited for space. `full` says
    that the file is larger than it may be. `fenced` says that another server has taken over, so
    that this thread has ended.
    """

    done: int
    error: str = ""
    lost: frozenset[int] = frozenset()
    full: bool = False
    fenced: bool = False


class Writer:
    """Writes items in their order. `tell` is called in the thread, after every commit."""

    def __init__(
        self, store: SessionStore, clock: Clock, tell: Callable[[WriteProgress], None]
    ) -> None:
        self._store = store
        self._clock = clock
        self._tell = tell
        self._items: deque[tuple[Item, ...]] = deque()
        self._woken = threading.Event()
        self._ends = False
        self._lost: set[int] = set()
        self._done = 0
        self._full = False
        self._fenced = False
        self._thread = threading.Thread(target=self._run, name="weftline-journal", daemon=True)
        self._thread.start()

    def put(self, items: tuple[Item, ...]) -> None:
        """Add items for one transaction. `wake` the thread when all of a turn are there."""
        self._items.append(items)

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        """Write what is there, and end. Waits for the thread."""
        self._ends = True
        self._woken.set()
        self._thread.join()
        self._store.close()

    def abandon(self) -> None:
        """Write nothing more. Waits for the thread, and leaves the store open."""
        self._fenced = True
        self._woken.set()
        self._thread.join()

    def _run(self) -> None:
        synced, dirty = time.monotonic(), False
        while True:
            self._woken.wait(SYNC_S if dirty else None)
            ends = self._ends  # before the items are taken: what comes later is not awaited
            self._woken.clear()
            if self._items and not self._fenced:
                self._commit_all(ends)
                dirty = self._store.is_synced_later
            if dirty and time.monotonic() - synced >= SYNC_S:
                self._attempt(self._store.sync)
                synced, dirty = time.monotonic(), False
            if ends or self._fenced:
                return

    def _commit_all(self, ends: bool) -> None:
        """Commit every item that is there. Tries again until it works, or the server ends."""
        changes: list[Change] = []
        count = 0
        while True:
            ends = ends or self._ends  # an attempt that began after that was the last
            held = sum(len(one.body) for one in changes if isinstance(one, Append))
            while self._items:
                count += 1
                for item in self._items.popleft():
                    changes += self._changes(item)
            if held > MOST_HELD:
                self._lost |= {one.session for one in changes}
                changes = [Drop(session) for session in self._lost]
            try:
                error = self._attempt(partial(self._store.write, changes))
            except Fenced as fenced:
                log.error("another server has taken this one's sessions over: %s", fenced)
                self._fenced = True
                self._tell(WriteProgress(self._done, fenced=True))
                return
            if not error:
                break
            self._tell(WriteProgress(self._done, error, frozenset(self._lost), self._full))
            if ends or self._fenced:
                log.error("%d records could not be written: %s", len(changes), error)
                return
            time.sleep(RETRY_S)
        self._done += count
        self._tell(WriteProgress(self._done, "", frozenset(self._lost), self._full))

    def _changes(self, item: Item) -> list[Change]:
        match item:
            case SessionRecord(session, noted):
                return [] if session in self._lost else self._encoded(session, noted)
            case Sweep(now, keys_s):
                self._attempt(partial(self._sweep, now, keys_s))
                return []
        return [] if item.session in self._lost else [item]

    def _encoded(self, session: int, noted: Noted) -> list[Change]:
        try:
            return [Append(session, encode(noted, self._clock))]
        except Exception:  # our bug: without this thread no session would be kept any more
            log.exception("a record cannot be written, so its session is not kept")
            self._lost.add(session)
            return [Drop(session)]

    def _sweep(self, now: float, keys_s: float) -> None:
        self._full = not self._store.expire(now, keys_s)

    def _attempt(self, work: Callable[[], None]) -> str:
        """What went wrong; "" for nothing."""
        try:
            work()
        except self._store.failures as error:
            return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return ""
