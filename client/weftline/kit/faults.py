"""Exceptions that are not weftline's: how the background keeps their cause for the reader.

Code in this process, such as an instrumented HTTP client, may raise anything while a request is
sent or read. The reader gets a ClientFailed, whose cause is that exception with its traceback. It
is neither a ValueError nor a TypeError, because frameworks treat these as an answer that cannot be
parsed, and go on without the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from weftline.contract.errors import Cancelled, ClientFailed, WeftlineError

# An error of ours is one of these, too. Cancelling a submit raises none of them.
FOREIGN = (Exception, KeyboardInterrupt, SystemExit)


def as_ours(error: BaseException, *, began: bool = False) -> WeftlineError:
    """`error`, or a ClientFailed whose cause it is. `began` says that a response had begun."""
    return error if isinstance(error, WeftlineError) else ClientFailed.of(error, began=began)


@contextmanager
def raising_ours() -> Iterator[None]:
    """Raise a ClientFailed for an exception of this block that is not weftline's."""
    try:
        yield
    except WeftlineError:
        raise
    except Exception as error:
        raise ClientFailed.of(error) from error


def error_of(result: Future[Any]) -> WeftlineError | None:
    """The error of a result that has settled; None if it has a value."""
    if result.cancelled():
        return Cancelled("its reader has left")
    error = result.exception()
    return None if error is None else as_ours(error)


def traceback_of(error: BaseException) -> BaseException | None:
    """`error`, if a log should show its traceback: code in this process has raised it."""
    is_answer = isinstance(error, WeftlineError) and not isinstance(error, ClientFailed)
    return None if is_answer else error
