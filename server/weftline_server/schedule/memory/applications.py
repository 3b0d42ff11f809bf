"""The record of each application: its KV cache need, its pauses, and the contexts it left.

The record is learned from the application itself and from earlier applications of its kind. The
code is synchronous and has no clock: callers pass the time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from weftline_engine.api import Usage
from weftline_server.schedule.memory.pauses import UNKNOWN_PAUSE_S

# A first call grows by GROWTH times itself, or GROWTH times the tenant's usual first call if that
# is less: long first calls do not grow as much. With GROWTH times itself, coding agents with long
# first calls ran alone in a cache for eight. Each of the OTHERS applications that ended last
# corrects the guess, by as much as its own first call weighs against this one's.
GROWTH = 2.0
OTHERS = 16
# Applications are of one kind if their first calls differ by at most this factor. Without it, small
# agents had taught that large agents stay small: 31 were admitted where 9 fit, and three quarters
# of the prefill was recomputed.
ALIKE = 1.5
# Kinds remembered for each tenant and model. With this many, every context length is near one.
MOST_KINDS = 32
# A kind whose applications give their room up in more than this share of their pauses does so.
MOSTLY = 0.5
# The weight of the newest observation in a running mean.
_NEWEST = 0.3
# Pauses below so many seconds are not told apart.
_SHORTEST_S = 1e-3
# The longest pause of a kind counts less with each later pause: a half after 23 of them.
_FADING = 0.97


class Growths:
    """By how many tokens a tenant's applications grow after their first calls, of whatever kind."""

    def __init__(self) -> None:
        self._began: deque[int] = deque(maxlen=OTHERS)  # first calls
        self._ended: deque[tuple[int, int]] = deque(maxlen=OTHERS)  # first calls, and growths
        # Sums over these, because `expect` runs for each of many that wait.
        self._usual = math.inf
        self._weight = self._grown = 0

    def expect(self, first: int) -> float:
        """The growth of an application of an unknown kind, with so many tokens in its first call.

        Applications with short first calls say little about an application with a long first call.
        """
        guess = GROWTH * min(first, self._usual)
        return (first * guess + self._grown) / max(1, first + self._weight)

    def begin(self, first: int) -> None:
        """An application has begun with a call of so many tokens."""
        self._began.append(first)
        self._usual = sum(self._began) / len(self._began)

    def end(self, first: int, growth: int) -> None:
        """An application has ended, `growth` tokens larger than its first call."""
        self._ended.append((first, growth))
        self._weight = sum(tokens for tokens, _ in self._ended)
        self._grown = sum(tokens * more for tokens, more in self._ended)


@dataclass(slots=True)
class Habits:
    """Running means over the applications of one kind.

    `first` counts the tokens of the first call that was seen of the kind. `pause_s` are the seconds
    between two calls, a geometric mean, and `longest_s` those of a long pause. `size` counts an
    application's tokens at its end, and `shared` the tokens among these that other applications had
    computed before. `released` is the share of its pauses in which it gave its room up. `others`
    are all applications of the tenant.
    """

    first: int = 0
    pause_s: float | None = None
    longest_s: float = 0.0
    size: float | None = None
    shared: float = 0.0
    released: float | None = None
    others: Growths = field(default_factory=Growths)

    def learn_release(self, gives_up: bool) -> None:
        self.released = mean(self.released, float(gives_up))

    def learn_pause(self, seconds: float) -> None:
        self.pause_s = typical(self.pause_s, seconds)
        self.longest_s = max(_FADING * self.longest_s, seconds)

    def learn_size(self, tokens: int) -> None:
        self.size = mean(self.size, tokens)

    def learn_shared(self, tokens: int) -> None:
        self.shared = mean(self.shared, tokens)


def mean(known: float | None, seen: float) -> float:
    return seen if known is None else known + _NEWEST * (seen - known)


def typical(known: float | None, seconds: float) -> float:
    """A geometric running mean of pauses.

    A few pauses are a hundred times as long as most, and an arithmetic mean would follow them: the
    contexts whose last pause was long would be evicted first, and come back soon. Half of the
    pauses of 24 coding agents are below 16 s, and their mean is 123 s.
    """
    seen = max(seconds, _SHORTEST_S)
    return seen if known is None else float(known ** (1 - _NEWEST) * seen**_NEWEST)


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
    known, and the tokens that it may still generate, if it runs alone. `untold` says that nobody
    will tell whether it is the last one, and `settled` that its answer calls none of the tools that
    it was offered: with such an answer an agent's loop ends."""

    need: float | None = None
    left: int = 0
    untold: bool = False
    settled: bool = False


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
        self.newest.settled = False
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
        if self.is_settled:
            return True
        if self.idle_since is None:
            return False
        if not self.newest.untold:
            least = self._long_pause_s
        elif self.habits.pause_s is None:  # no call of the kind was followed by another one
            least = UNTOLD_DORMANT_S
        else:
            least = max(UNTOLD_DORMANT_S, UNTOLD_PAUSES * self._usual_pause_s)
        pauses = max(least, self.habits.longest_s)
        return now - self.idle_since > max(pauses, fill_s * self.own)

    def seems_over(self, now: float) -> bool:
        """Whether the application has paused for so much longer than usual that it may have
        ended."""
        if self.is_settled:
            return True
        if self.idle_since is None:
            return False
        return now - self.idle_since > max(self._long_pause_s, self.habits.longest_s)

    @property
    def is_settled(self) -> bool:
        """Whether the application has probably ended, and nobody will tell it."""
        return self.idle_since is not None and self.newest.untold and self.newest.settled

    @property
    def _usual_pause_s(self) -> float:
        return max(self.expected_pause_s, self.habits.pause_s or 0.0)

    @property
    def _long_pause_s(self) -> float:
        least = DORMANT_S if self.habits.pause_s is None else KNOWN_DORMANT_S
        return max(least, DORMANT_PAUSES * self._usual_pause_s)


# An application is dormant after this many of its usual pauses, and after the longest pause of its
# kind, but not before DORMANT_S seconds. Without the longest pause, coding agents lost their places
# while their users thought: 24 sessions in the cache that they need ended 1.87 a minute instead of
# 2.01. Where the pauses of its kind are known, KNOWN_DORMANT_S takes the place of DORMANT_S: a
# client may not tell when a session ends. 32 agents with pauses of 0.5 s, on a cache for nine, took
# 120 s with 30 s, and 48 s with 5 s. Where nobody tells it for sure, the constants are those of
# UNTOLD. Before any pause is known, a call that may be the only one keeps its room for as long as
# its context takes to compute, and for UNTOLD_DORMANT_S. Record 47 has what that gains. An
# application is not dormant before its context could be computed again, which stops the engine for
# that time: two sessions with 9,000 and 12,000 tokens had taken turns in a cache for one of them,
# and each turn computed one of them for 40 s.
DORMANT_PAUSES = 4.0
DORMANT_S = 30.0
KNOWN_DORMANT_S = 5.0
UNTOLD_PAUSES = 2.0
UNTOLD_DORMANT_S = 1.0


class Recomputed:
    """The share of the recent prefill that had been computed before and was evicted.

    Old observations fade with the tokens computed since: after `horizon` tokens they weigh 1/e.
    """

    def __init__(self) -> None:
        self._again = 0.0
        self._all = 0.0

    @property
    def share(self) -> float | None:
        """The share; None until a prompt is counted: not every engine counts cached tokens."""
        return self._again / self._all if self._all else None

    def add(self, usage: Usage, known: int, horizon: float) -> int:
        """Count a prompt of which `known` tokens had been computed before, by this application.

        Return how many of them were computed again.
        """
        computed = usage.prompt_tokens - usage.cached_tokens
        fade = math.exp(-computed / horizon)
        again = min(computed, max(0, known - usage.cached_tokens))
        self._again = self._again * fade + again
        self._all = self._all * fade + computed
        return again


class Busy:
    """The share of the recent time in which a model's engines were busy.

    Old observations fade: after BUSY_S seconds they weigh 1/e.
    """

    def __init__(self) -> None:
        self.share = 1.0
        self._now = 0.0
        self._at: float | None = None

    def note(self, busy: float, now: float) -> None:
        """Note that this share of the engines is busy from now on."""
        if self._at is not None:
            fade = math.exp(-(now - self._at) / BUSY_S)
            self.share = self.share * fade + self._now * (1 - fade)
        self._now, self._at = busy, now

    def restart(self, now: float) -> None:
        """Forget the time before `now`: it says nothing about work that comes from now on."""
        self.share, self._at = 1.0, now


class Filling:
    """The share of the recent time in which a model's engines computed prompts, each prompt at the
    mean seconds of a token. Old prompts fade: after BUSY_S seconds they weigh 1/e. So does what is
    assumed of the time before the first prompt: that prompts took all of it.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._at: float | None = None
        self._began = 0.0

    def add(self, seconds: float, now: float) -> None:
        """Note that a prompt took these seconds."""
        if self._at is None:
            self._began = now
        self._seconds = self._faded(now) + seconds
        self._at = now

    def share(self, now: float, engines: int) -> float:
        """The share of the time of so many engines."""
        before = 1.0 if self._at is None else math.exp(-(now - self._began) / BUSY_S)
        return before + self._faded(now) / (BUSY_S * max(1, engines))

    def _faded(self, now: float) -> float:
        if self._at is None:
            return 0.0
        return self._seconds * math.exp(-(now - self._at) / BUSY_S)


BUSY_S = 10.0


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
        if found is not None and found.stays:
            found.tell_size()
        return found
