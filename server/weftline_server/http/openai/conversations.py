"""The sessions of clients that name none: found by their headers, or by prompts that grow.

An agent sends its whole conversation with each request. Where its requests are one session, the
scheduler admits the agent as a whole and keeps its context through a pause. A session found here
only advises the scheduler: prompts are never changed, so a wrong guess costs time and never text.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from weftline.errors import Overloaded
from weftline_server.http.openai.requests import ChatMessage, ChatRequest, CompletionRequest
from weftline_server.runtime.service import Service
from weftline_server.session.session import Session

# Headers that name a session; the first one counts.
HEADERS = ("x-session-id", "x-dynamo-session-id")
# Sessions that are kept for later requests, and ends of conversations that are remembered.
MOST_SESSIONS = 256
MOST_ENDS = 8192
# A session keeps the prompts of all its calls. Beyond this many characters another one goes on.
MOST_CHARS = 4_000_000
IDLE_S = 300.0


@dataclass(eq=False)
class _Conversation:
    session: Session
    used: float
    chars: int = 0


class Conversations:
    """Finds the session of a request among those of its tenant."""

    def __init__(self, service: Service, clock: Callable[[], float] = time.monotonic) -> None:
        self._service = service
        self._now = clock
        self._named: dict[tuple[str, str], _Conversation] = {}
        # By tenant, scope and hash of the messages so far. None: one request came, which may have
        # been the only one.
        self._ends: OrderedDict[tuple[str, str, bytes], _Conversation | None] = OrderedDict()
        self._open: OrderedDict[_Conversation, None] = OrderedDict()  # least recently used first

    def find(
        self, tenant: str, headers: Mapping[str, str], body: ChatRequest | CompletionRequest
    ) -> Session | None:
        """Return the session in which the request runs; None if it is one of its own."""
        self._close_idle()
        name = next((headers[key] for key in HEADERS if headers.get(key)), None)
        try:
            if name is not None:
                return self._by_name(tenant, name[:256], _chars(body))
            if isinstance(body, ChatRequest) and len(body.messages) > 0:
                return self._by_messages(tenant, body)
        except Overloaded:
            pass  # the tenant has too many sessions to keep another one for later requests
        return None

    def _by_name(self, tenant: str, name: str, chars: int) -> Session:
        found = self._named[tenant, name] = self._current(tenant, self._named.get((tenant, name)))
        return self._use(found, chars)

    def _by_messages(self, tenant: str, body: ChatRequest) -> Session | None:
        scope = body.prompt_cache_key or body.user or ""
        keys = [(tenant, scope, digest) for digest in _digests(body)]
        before = next((key for key in reversed(keys) if key in self._ends), None)
        if before is None or (before == keys[-1] and self._ends[before] is None):
            self._remember(keys[-1], None)
            return None
        known = self._ends[before]
        if known is not None:
            del self._ends[before]
        found = self._current(tenant, known)
        self._remember(keys[-1], found)
        return self._use(found, _chars(body))

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

    def _use(self, found: _Conversation, chars: int) -> Session:
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
    return sum(map(len, (body.prompt,) if isinstance(body.prompt, str) else body.prompt))


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
