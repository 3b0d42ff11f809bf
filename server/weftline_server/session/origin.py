"""Where tasks come from: the HTTP request that submitted them, for logs and traces."""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Origin:
    """The request's id, the span of the client that sent it (W3C's traceparent), if any, and the
    name that the client gives to its run.
    """

    request_id: str = ""
    traceparent: str = ""
    run_name: str = ""


NOBODY = Origin()

# Of the request that is being handled. The HTTP layer sets it, the driver reads it.
ORIGIN: ContextVar[Origin] = ContextVar("weftline_origin", default=NOBODY)


def trace_of(session: str) -> int:
    """The number of a session's trace where no client names one."""
    return int(_trace(session), 16)


def name_run(name: str) -> None:
    """Note the name of the run that the request being handled belongs to, if it says one."""
    if name:
        ORIGIN.set(replace(ORIGIN.get(), run_name=name))


def span_of(session: str, task: str) -> int:
    """The number of a task's span. The number follows from ids, so it is known before the span is
    made."""
    return int(_digits(f"{session}/{task}", 8), 16)


def handed_on(origin: Origin, session: str, task: str) -> str:
    """The traceparent of a request to an engine: the task's span, in the client's trace if it sent
    one, with the client's decision whether to record it."""
    trace, flags = "", "01"
    if origin.traceparent:
        _, trace, _, flags = origin.traceparent.split("-")
    return f"00-{trace or _trace(session)}-{_digits(f'{session}/{task}', 8)}-{flags}"


@lru_cache(maxsize=1024)  # each primitive of a session asks, and again when its plan changes
def _trace(session: str) -> str:
    return _digits(session, 16)


def _digits(text: str, size: int) -> str:
    """A number of `size` bytes that follows from the text, in hex."""
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()
