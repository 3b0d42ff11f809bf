"""The sessions of clients that name none: found by their headers, or by prompts that grow.

An agent sends its whole conversation with each request. Where its requests are one session, the
scheduler admits the agent as a whole and keeps its context through a pause. The first request of a
conversation may be the only one. It gets a session where most conversations of its tenant went on,
and as long as this is not known: agents that all begin at once would otherwise evict each other.
A session found here only advises the scheduler: prompts are never changed, so a wrong guess costs
time and never text.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from weftline.contract.errors import Overloaded
from weftline_server.http.openai.requests import ChatMessage, ChatRequest, CompletionRequest
from weftline_server.session.session import ServerSession

# Headers that name a session; the first one counts.
HEADERS = ("x-session-id", "x-dynamo-session-id")
# Sessions that are kept for later requests, and ends of conversations that are remembered.
MOST_SESSIONS = 256
MOST_ENDS = 8192
# A session keeps the prompts of all its calls. Beyond this many characters another one goes on.
MOST_CHARS = 4_000_000
IDLE_S = 300.0
# A first request gets a session at once where at least LIKELY of the tenant's conversations went
# on. They are judged after FEWEST of them, by the last MOST_COUNTED to twice as many.
LIKELY = 0.5
FEWEST, MOST_COUNTED = 4, 64
MOST_TENANTS = 1024
# A conversation that has a session counts when it goes on, or this many seconds after its first
# answer. Those that began at once counted at once before: after eight agents had gone on, the last
# seven of 16 others ran outside the scheduler's rooms. At most so many are undecided.
UNDECIDED_S = 3.0
MOST_UNDECIDED = 256


@dataclass(eq=False)
class _Conversation:
    session: ServerSession
    used: float
    chars: int = 0
    answered: float | None = None  # when its first answer had come
    has_grown: bool = False  # a request with more messages than the first one came


@dataclass
class _Habit:
    """How many conversations of a tenant began, how many of them went on, and those of which this
    is not known yet."""

    began: int = 0
    went_on: int = 0
    undecided: dict[_Conversation, None] = field(default_factory=dict)
    is_watched: bool = False  # somebody looks at the undecided ones again, soon

    @property
    def is_known(self) -> bool:
        return self.began >= FEWEST or len(self.undecided) >= MOST_UNDECIDED

    @property
    def goes_on(self) -> bool:
        """Whether another conversation is likely to go on."""
        return self.began >= FEWEST and self.went_on >= LIKELY * self.began

    def count(self) -> None:
        """Count another conversation that has begun. Old ones fade."""
        self.began += 1
        if self.began >= 2 * MOST_COUNTED:
            self.began, self.went_on = self.began // 2, self.went_on // 2


class Opener(Protocol):
    """Opens and closes sessions, as the service does."""

    def open(self, tenant: str) -> ServerSession: ...

    def close(self, session: ServerSession) -> None: ...


class Conversations:
    """Finds the session of a request among those of its tenant."""

    def __init__(self, service: Opener, clock: Callable[[], float] = time.monotonic) -> None:
        self._service = service
        self._now = clock
        self._named: dict[tuple[str, str], _Conversation] = {}
        # By tenant, scope and hash of the messages so far. None: a request that may have been the
        # only one, or several that were equal.
        self._ends: OrderedDict[tuple[str, str, bytes], _Conversation | None] = OrderedDict()
        self._open: OrderedDict[_Conversation, None] = OrderedDict()  # least recently used first
        self._habits: OrderedDict[str, _Habit] = OrderedDict()  # by tenant

    def find(
        self,
        tenant: str,
        headers: Mapping[str, str],
        body: ChatRequest | CompletionRequest,
        *,
        goes_on: bool = False,
    ) -> ServerSession | None:
        """Return the session in which the request runs; None if the request gets a session of its
        own. The client may say that the conversation `goes_on`."""
        self._close_idle()
        name = next((headers[key] for key in HEADERS if headers.get(key)), None)
        try:
            if name is not None:
                return self._by_name(tenant, name[:256], _chars(body))
            if isinstance(body, ChatRequest) and len(body.messages) > 0:
                return self._by_messages(tenant, body, goes_on)
        except Overloaded:
            pass  # the tenant has too many sessions to keep another one for later requests
        return None

    def abandon(self, session: ServerSession) -> None:
        """A request in this session got no answer. If the request was the first one of a guessed
        conversation, the conversation has not begun, and its session is closed.
        """
        found = next((one for one in self._open if one.session is session), None)
        if found is None or found.has_grown or not session.guessed:
            return
        for habit in self._habits.values():
            habit.undecided.pop(found, None)
        self._close(found)

    def _by_name(self, tenant: str, name: str, chars: int) -> ServerSession:
        found = self._named[tenant, name] = self._current(tenant, self._named.get((tenant, name)))
        return self._use(found, chars)

    def _by_messages(self, tenant: str, body: ChatRequest, goes_on: bool) -> ServerSession | None:
        scope = body.prompt_cache_key or body.user or ""
        keys = [(tenant, scope, digest) for digest in _digests(body)]
        before = next((key for key in reversed(keys) if key in self._ends), None)
        if before is None:
            return self._first(tenant, keys[-1], _chars(body), goes_on)
        known = self._ends[before]
        if before == keys[-1] and (known is None or not known.has_grown):
            self._remember(before, None)  # another conversation that begins in the same way
            return None
        if known is not None:
            del self._ends[before]
        if known is None or not known.has_grown:
            habit = self._habit(tenant)
            habit.went_on += 1
            if known is not None and known in habit.undecided:
                del habit.undecided[known]
                habit.count()
        found = self._guessed(tenant, known)
        self._remember(keys[-1], found)
        found.has_grown = True
        return self._use(found, _chars(body))

    def _first(
        self, tenant: str, key: tuple[str, str, bytes], chars: int, goes_on: bool
    ) -> ServerSession | None:
        """The session of a conversation that begins; None if it may be the only request."""
        habit = self._habit(tenant)
        self._decide(habit)
        if habit.is_known and not habit.goes_on and not goes_on:
            habit.count()
            self._remember(key, None)
            return None
        found = self._guessed(tenant, None)
        if len(habit.undecided) < MOST_UNDECIDED:
            habit.undecided[found] = None
            self._watch(habit)
        else:
            habit.count()
        self._remember(key, found)
        return self._use(found, chars)

    def _decide(self, habit: _Habit) -> None:
        """Count the conversations that have not gone on for a while. Where most do not, close their
        sessions."""
        now = self._now()
        for found in list(habit.undecided):
            if found.session.ended is None and found.session.execution.work_left:
                continue
            if found.answered is None:
                found.answered = now
            if now - found.answered > UNDECIDED_S:
                del habit.undecided[found]
                habit.count()
                if not habit.goes_on:
                    self._close(found)

    def _watch(self, habit: _Habit) -> None:
        """Decide about a habit's conversations after a while, also if no request comes."""
        if not habit.is_watched and habit.undecided:
            habit.is_watched = True
            asyncio.get_running_loop().call_later(UNDECIDED_S, self._look_again, habit)

    def _look_again(self, habit: _Habit) -> None:
        habit.is_watched = False
        self._decide(habit)
        self._watch(habit)

    def _habit(self, tenant: str) -> _Habit:
        found = self._habits[tenant] = self._habits.pop(tenant, _Habit())
        if len(self._habits) > MOST_TENANTS:
            self._habits.popitem(last=False)
        return found

    def _remember(self, key: tuple[str, str, bytes], found: _Conversation | None) -> None:
        self._ends[key] = found
        self._ends.move_to_end(key)
        if len(self._ends) > MOST_ENDS:
            self._ends.popitem(last=False)

    def _current(self, tenant: str, known: _Conversation | None) -> _Conversation:
        """`known` if it can go on, or a new one."""
        if known is not None and known.session.ended is None:
            if known.chars <= MOST_CHARS or known.session.execution.work_left:
                return known
            self._close(known)
        return _Conversation(self._service.open(tenant), self._now())

    def _guessed(self, tenant: str, known: _Conversation | None) -> _Conversation:
        """The same for a conversation that was found by its messages."""
        found = self._current(tenant, known)
        found.session.guessed = True
        return found

    def _use(self, found: _Conversation, chars: int) -> ServerSession:
        found.used = self._now()
        found.chars += chars
        self._open[found] = None
        self._open.move_to_end(found)
        return found.session

    def _close_idle(self) -> None:
        for found in list(self._open):
            if len(self._open) <= MOST_SESSIONS and self._now() - found.used < IDLE_S:
                break
            if not found.session.execution.work_left:
                self._close(found)

    def _close(self, found: _Conversation) -> None:
        self._open.pop(found, None)
        if found.session.ended is None:
            self._service.close(found.session)
        for key in [key for key, one in self._named.items() if one is found]:
            del self._named[key]


def _chars(body: ChatRequest | CompletionRequest) -> int:
    if isinstance(body, ChatRequest):
        return sum(len(message.text) for message in body.messages)
    return sum(map(len, body.prompts))


def _digests(body: ChatRequest) -> Sequence[bytes]:
    """A hash of the model and the messages up to each message."""
    digest = hashlib.blake2b(repr((body.model, body.tools)).encode(), digest_size=16)
    found = []
    for message in body.messages:
        digest.update(_identity(message).encode(errors="surrogatepass"))
        found.append(digest.digest())
    return found


def _identity(message: ChatMessage) -> str:
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    text = message.text
    return f"{message.role}\0{len(text)}\0{text}\0{calls!r}\0{message.tool_call_id}"
