"""What is known of each application: how much of the KV cache it needs, when it comes back, which
contexts it left; learnt from what it does and from others before it. Synchronous, told the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from weftline_engine.api import Usage

# What a session that shows no habit yet is taken to wait on its user or tool, in seconds.
UNKNOWN_PAUSE_S = 5.0
# An application of a kind that nobody has seen is taken to grow to so many times its first call.
GROWTH = 3.0
# Applications are of one kind where the first call of one is at most so many times that of another.
# Small agents had taught that large ones stay small: 31 entered where 9 fit, and three quarters of
# what was computed had been computed before.
ALIKE = 1.5
# Kinds remembered of a tenant on a model: with so many no length of a context lies outside of all.
MOST_KINDS = 32
# Weight of the newest observation against all before it.
_NEWEST = 0.3


@dataclass(slots=True)
class Habits:
    """Running means over the applications of one kind: tokens of the first call that was seen of
    it, seconds between calls, tokens in the end, and of these the ones that others had computed
    before."""

    first: int = 0
    pause_s: float | None = None
    size: float | None = None
    shared: float = 0.0

    def learn_pause(self, seconds: float) -> None:
        self.pause_s = _mean(self.pause_s, seconds)

    def learn_size(self, tokens: int) -> None:
        self.size = _mean(self.size, tokens)

    def learn_shared(self, tokens: int) -> None:
        self.shared = _mean(self.shared, tokens)


def _mean(known: float | None, seen: float) -> float:
    return seen if known is None else known + _NEWEST * (seen - known)


@dataclass(slots=True)
class Kept:
    """A context that was not freed. `prompt` and `hash` are its prompt's length and hash.

    `tokens` counts what will be read of it. It is kept for a call that the graph knows (`sure`),
    for a `paused` call that will go on, or for a call that may come.
    """

    engine: str
    prompt: int
    hash: int
    tokens: int
    sure: bool = False
    paused: bool = False
    pinned: bool = False

    def begins(self, tokens: Sequence[int]) -> bool:
        """Return whether a prompt is longer than this one and begins with it."""
        return len(tokens) > self.prompt and prefix_hash(tokens, self.prompt) == self.hash


def prefix_hash(tokens: Sequence[int], length: int) -> int:
    """Of the first `length` tokens; compared only within one application."""
    return hash(tuple(tokens[:length]))


@dataclass(slots=True)
class Application:
    """One session as the scheduler sees it. `stays` says that calls may come which nobody knows
    yet; `first` are the tokens of its first call, `size` of its largest one, prompt and output;
    `busy` counts the calls that have not ended."""

    id: str
    model: str
    tenant: str
    stays: bool
    arrival: float
    since: float  # when it began to wait for admission
    habits: Habits
    admitted: bool = False
    busy: int = 0
    first: int = 0
    size: int = 0
    idle_since: float | None = None
    goes_on: bool = False  # when it became idle, its next call was known and on its way
    pause_s: float | None = None
    prompt: tuple[int, int] | None = None  # length and hash of its newest prompt
    kept: dict[str, Kept] = field(default_factory=dict)

    @property
    def expected_pause_s(self) -> float:
        """Between the end of a call and the next one: its own habit, else that of its like."""
        known = self.pause_s if self.pause_s is not None else self.habits.pause_s
        return UNKNOWN_PAUSE_S if known is None else known

    @property
    def own(self) -> float:
        """Tokens of KV cache that it holds for itself alone."""
        return max(0.0, self.size - self.habits.shared)

    @property
    def growth(self) -> float:
        """How many more tokens it will hold in the end, if it is like the others before it."""
        last = GROWTH * self.first if self.habits.size is None else self.habits.size
        return max(0.0, last - self.size)

    def queued(self, tokens: int, now: float) -> None:
        """A call of so many tokens has come."""
        self.first = self.first or tokens
        self.size = max(self.size, tokens)
        if self.idle_since is not None and not self.goes_on:
            pause = now - self.idle_since
            self.pause_s = _mean(self.pause_s, pause)
            self.habits.learn_pause(pause)
        self.idle_since = None
        self.busy += 1

    def ended(self, now: float, goes_on: bool = False) -> None:
        """A call has ended, well or badly. Where the application `goes_on` by itself the time until
        its next call is the server's, and tells nothing of its user or its tools."""
        self.busy -= 1
        if self.busy == 0:
            self.idle_since, self.goes_on = now, goes_on

    def is_dormant(self, now: float) -> bool:
        """Whether it has stayed away so long that its room is given to others."""
        if self.idle_since is None:
            return False
        usual = max(self.expected_pause_s, self.habits.pause_s or 0.0)
        return now - self.idle_since > max(DORMANT_S, DORMANT_PAUSES * usual)


# An application is dormant after so many of its usual pauses, and not before so many seconds.
DORMANT_PAUSES = 4.0
DORMANT_S = 30.0


class Recomputed:
    """Which share of the prefill, lately, had been computed before and was evicted.

    The past fades with the tokens computed since: after `horizon` of them it counts 1/e.
    """

    def __init__(self) -> None:
        self._again = 0.0
        self._all = 0.0

    @property
    def share(self) -> float | None:
        """None until something was counted: not every engine tells what lay in its cache."""
        return self._again / self._all if self._all else None

    def add(self, usage: Usage, known: int, horizon: float) -> None:
        """Count a prompt of which `known` tokens had been computed before."""
        computed = usage.prompt_tokens - usage.cached_tokens
        fade = math.exp(-computed / horizon)
        again = min(computed, max(0, known - usage.cached_tokens))
        self._again = self._again * fade + again
        self._all = self._all * fade + computed


class Busy:
    """Which share of the recent time a model's engines had something to do; the past fades with
    `BUSY_S` seconds."""

    def __init__(self) -> None:
        self.share = 1.0
        self._now = 0.0
        self._at: float | None = None

    def note(self, busy: float, now: float) -> None:
        """From now on so many of the engines are busy, as a share."""
        if self._at is not None:
            fade = math.exp(-(now - self._at) / BUSY_S)
            self.share = self.share * fade + self._now * (1 - fade)
        self._now, self._at = busy, now


BUSY_S = 10.0


class Applications:
    """All applications with a call that has not ended, or with contexts that are kept."""

    def __init__(self) -> None:
        self._known: dict[str, Application] = {}
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
        """The application, which may be a new one that begins with a call of `first` tokens."""
        found = self._known.get(id)
        if found is None:
            habits = self._habits_of(tenant, model, max(1, first))
            found = self._known[id] = Application(id, model, tenant, stays, now, now, habits)
        return found

    def _habits_of(self, tenant: str, model: str, first: int) -> Habits:
        """Those of the kind that begins most like this, which may be a new one."""
        kinds = self._kinds.setdefault((tenant, model), [])

        def apart(kind: Habits) -> float:
            return max(kind.first, first) / min(kind.first, first)

        found = min(kinds, key=apart, default=None)
        if found is None or apart(found) > ALIKE:
            found = Habits(first=first)
            del kinds[: max(0, len(kinds) + 1 - MOST_KINDS)]
        else:
            kinds.remove(found)
        kinds.append(found)
        return found

    def leave(self, id: str) -> Application | None:
        """Forget it, but for what others can learn from it."""
        found = self._known.pop(id, None)
        if found is not None and found.stays and found.size:
            found.habits.learn_size(found.size)
        return found
