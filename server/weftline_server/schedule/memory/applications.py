"""The record of each application: its KV cache need, its pauses, and the contexts it left.

The record is learned from the application itself and from earlier applications of its kind. The
code is synchronous and has no clock: callers pass the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from weftline_server.schedule.memory.constants import (
    ALIKE,
    DORMANT_PAUSES,
    DORMANT_S,
    END_UNKNOWN_DORMANT_S,
    END_UNKNOWN_PAUSES,
    KNOWN_DORMANT_S,
    MOST_KINDS,
    MOSTLY,
    RELOADS,
)
from weftline_server.schedule.memory.habits import Growths, Habits, typical
from weftline_server.schedule.memory.pauses import UNKNOWN_PAUSE_S


@dataclass(slots=True)
class KeptContext:
    """A context that was not freed. `prompt` and `hash` are its prompt's length and hash.

    `tokens` counts what will be read of the context. The context is kept for a call that the graph
    knows (`sure`), for a `paused` call that will go on, or for a call that may come. Of a paused
    call `ids` are all token ids of the context, if they are known.
    """

    engine: str
    prompt: int
    hash: int
    tokens: int
    sure: bool = False
    paused: bool = False
    pinned: bool = False
    ids: tuple[int, ...] = ()

    def begins(self, tokens: Sequence[int]) -> bool:
        """Return whether a prompt is longer than this context's prompt and begins with that
        prompt."""
        return len(tokens) > self.prompt and prefix_hash(tokens, self.prompt) == self.hash


def prefix_hash(tokens: Sequence[int], length: int) -> int:
    """Return a hash of the first `length` tokens. Hashes are compared within one application
    only."""
    return hash(tuple(tokens[:length]))


@dataclass(slots=True)
class Newest:
    """The newest call of an application: its token-seconds until it gives its room up, if they are
    known, and the tokens that it may still generate, if it runs alone. `end_unknown` says that
    nobody will tell whether it is the last one, and `calls_nothing` that its answer calls none of
    the tools that it was offered: with such an answer an agent's loop ends. `tools` are those that
    its calls have called last."""

    need: float | None = None
    left: int = 0
    end_unknown: bool = False
    calls_nothing: bool = False
    tools: tuple[str, ...] = ()


@dataclass(slots=True)
class Application:
    """One session as the scheduler sees it. `stays` says that the session may send more calls
    later. `first` counts the tokens of its first call, and `size` those of its largest call, prompt
    and output. `busy` counts the calls that have not ended.
    """

    id: str
    model: str
    stays: bool
    arrival: float
    since: float  # when it began to wait for admission
    habits: Habits
    busy: int = 0
    first: int = 0
    size: int = 0
    idle_since: float | None = None
    goes_on: bool = False  # when it became idle, its next call was known and on its way
    pause_s: float | None = None
    newest: Newest = field(default_factory=Newest)
    prompt: tuple[int, int] | None = None  # length and hash of its newest prompt
    salt: str = ""  # of its tenant
    kept: dict[str, KeptContext] = field(default_factory=dict)

    @property
    def expected_pause_s(self) -> float:
        """The seconds from the end of a call to the next one, by its own habit or its kind's."""
        known = self.pause_s if self.pause_s is not None else self.habits.pause_s
        return UNKNOWN_PAUSE_S if known is None else known

    @property
    def own(self) -> float:
        """The tokens of KV cache that the application shares with no other application."""
        return max(0.0, self.size - self.habits.shared)

    @property
    def growth(self) -> float:
        """How many more tokens the application will hold at its end, if the application is like
        others of its kind. An application that has outgrown its kind is expected to grow by as much
        again. Without that rule, 16 drawn sessions in three quarters of the cache that they need
        ended 11.2 a minute instead of 12.3. Where calls stop for tools, the rule does not hold,
        because then fewer applications would run beside this one: on LAMPS's mix at 4 requests a
        second a request took 14.3 s instead of 13.6 s. An application that gives its room up in its
        pauses is admitted again after each pause, so the application will hold no more than its
        present call.
        """
        if (self.habits.released or 0.0) > MOSTLY:
            return 0.0
        known = self.habits.size
        last = self.first + self.habits.others.expect(self.first) if known is None else known
        if self.size > last and self.habits.released is not None:
            return 0.0
        return abs(last - self.size)

    def queued(self, tokens: int, now: float, output: int = 0) -> None:
        """Record a new call of `tokens` tokens, `output` of which it generates."""
        self.newest.left = 0 if self.busy or tokens < self.size else output
        if self.newest.calls_nothing:
            self.habits.learn_resumed(True)
        self.newest.calls_nothing = False
        self.first = self.first or tokens
        self.size = max(self.size, tokens)
        if self.idle_since is not None and not self.goes_on:
            pause = now - self.idle_since
            self.pause_s = typical(self.pause_s, pause)
            self.habits.learn_pause(pause)
        self.idle_since = None
        self.busy += 1

    def ended(self, now: float, goes_on: bool = False) -> None:
        """Take note of the end of a call, whether it finished or failed.

        Where the application `goes_on` by itself, the time until its next call is the server's.
        This time is no pause, because the time tells nothing about the user or the tools.
        """
        self.busy -= 1
        self.newest.left = 0
        if self.busy == 0:
            self.idle_since, self.goes_on = now, goes_on

    def tell_size(self) -> None:
        """Let its kind learn its size at its end. Where nobody tells that end, the kind learns when
        the application seems to have ended, and again when its session is closed."""
        if self.size:
            self.habits.learn_size(self.size)
            self.habits.others.end(self.first, max(0, self.size - self.first))

    def is_dormant(self, now: float, fill_s: float) -> bool:
        """Return whether the application has paused so long that other applications get its room.

        A token of its context would take `fill_s` seconds to compute again.
        """
        if self.has_likely_ended:
            return True
        if self.idle_since is None:
            return False
        if not self.newest.end_unknown:
            least = self._long_pause_s
        elif self.habits.pause_s is None:  # no call of the kind was followed by another one
            least = END_UNKNOWN_DORMANT_S
        else:
            least = max(END_UNKNOWN_DORMANT_S, END_UNKNOWN_PAUSES * self._usual_pause_s)
        pauses = max(least, self.habits.longest_s)
        reloads = 1.0 if self.newest.end_unknown else RELOADS
        return now - self.idle_since > max(pauses, reloads * fill_s * self.own)

    def seems_over(self, now: float) -> bool:
        """Whether the application has paused for so much longer than usual that it may have
        ended."""
        if self.has_likely_ended:
            return True
        if self.idle_since is None:
            return False
        return now - self.idle_since > max(self._long_pause_s, self.habits.longest_s)

    @property
    def has_likely_ended(self) -> bool:
        """Whether the application has probably ended, and nobody will tell it."""
        return self.idle_since is not None and self.newest.end_unknown and self.newest.calls_nothing

    @property
    def is_read_last(self) -> bool:
        """Whether its contexts are of less use than all others. An application of a kind that
        mostly goes on after such an answer gives its room to others, and its contexts are evicted
        in their turn."""
        return self.has_likely_ended and (self.habits.resumed or 0.0) <= MOSTLY

    @property
    def _usual_pause_s(self) -> float:
        return max(self.expected_pause_s, self.habits.pause_s or 0.0)

    @property
    def _long_pause_s(self) -> float:
        least = DORMANT_S if self.habits.pause_s is None else KNOWN_DORMANT_S
        return max(least, DORMANT_PAUSES * self._usual_pause_s)


class Applications:
    """All applications that have a call under way or a kept context, and the known kinds."""

    def __init__(self) -> None:
        self._known: dict[str, Application] = {}
        self._others: dict[tuple[str, str], Growths] = {}
        self._kinds: dict[tuple[str, str], list[Habits]] = {}  # the last one seen is the last

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Application]:
        return iter(self._known.values())

    def find(self, id: str) -> Application | None:
        return self._known.get(id)

    def enter(
        self, id: str, model: str, tenant: str, stays: bool, now: float, first: int
    ) -> Application:
        """Return the application. A new application has a first call of `first` tokens."""
        found = self._known.get(id)
        if found is None:
            habits = self._habits_of(tenant, model, max(1, first))
            if stays:
                habits.others.begin(first)
            found = self._known[id] = Application(id, model, stays, now, now, habits, salt=tenant)
        return found

    def _habits_of(self, tenant: str, model: str, first: int) -> Habits:
        """Return the habits of the kind with the nearest first call. That kind may be new."""
        kinds = self._kinds.setdefault((tenant, model), [])

        def apart(kind: Habits) -> float:
            return max(kind.first, first) / min(kind.first, first)

        found = min(kinds, key=apart, default=None)
        if found is None or apart(found) > ALIKE:
            others = self._others.setdefault((tenant, model), Growths())
            found = Habits(first=first, others=others)
            del kinds[: max(0, len(kinds) + 1 - MOST_KINDS)]
        else:
            kinds.remove(found)
        kinds.append(found)
        return found

    def leave(self, id: str) -> Application | None:
        """Forget an application, after its kind has learned its size."""
        found = self._known.pop(id, None)
        if found is not None and found.newest.calls_nothing:
            found.habits.learn_resumed(False)
        if found is not None and found.stays:
            found.tell_size()
        return found
