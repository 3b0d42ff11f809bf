"""The wire: the requests of a client to the server, as frozen dataclasses of the standard library.

The SDK builds these types. The server validates them with pydantic, which reads the dataclasses as
they are. The session reads them without pydantic or HTTP. `__post_init__` checks the general rules,
so a client gets an error before it sends a request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from weftline.contract.bodies import StrictBody
from weftline.contract.calls import MAX_ITEMS as MAX_ITEMS
from weftline.contract.calls import MAX_PRIORITY as MAX_PRIORITY
from weftline.contract.calls import Call as Call
from weftline.contract.calls import Criterion as Criterion
from weftline.contract.calls import InOut as InOut
from weftline.contract.calls import Message as Message
from weftline.contract.calls import Placeholder as Placeholder
from weftline.contract.calls import Prompt as Prompt
from weftline.contract.calls import Segment as Segment
from weftline.contract.errors import InvalidRequest
from weftline.contract.ids import check_id as check_id
from weftline.contract.sampling import Sampling as Sampling
from weftline.contract.steps import Step

PROTOCOL_VERSION = "1"

MAX_RUN_NAME = 128  # characters
MAX_ERROR_CHARS = 4096  # of an error message that a client sends


def check_run_name(name: str) -> None:
    """Raise InvalidRequest unless `name` can name a run; "" names none."""
    if len(name) > MAX_RUN_NAME or not (name.isprintable() or not name):
        raise InvalidRequest(
            f"a run_name has at most {MAX_RUN_NAME} printable characters", param="run_name"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession(StrictBody):
    """What a client says of the session that it opens: with `beats` it promises heartbeats."""

    beats: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitBody(StrictBody):
    """The body of POST /v1/submit: calls, and steps of other kinds. They may read each other.

    A whole application can be one request.

    - `session_id` is the session. Without it the server opens one.
    - `open` allows a `session_id` that the client has chosen. The first request that names it opens
      the session, and later ones join it. So do requests of OpenAI's API.
    - `detach` keeps the calls running although nobody reads their outputs.
    - `get` names variables. The response waits for them and has their values.
    - `criteria` is what matters to the reader: it holds for `get` and `stream`, and for every other
      output that nothing reads, until a reader asks for that one.
    - `stream` names one variable. The response is then server-sent events: what was submitted, and
      the variable's text.
    - `watch` names variables. The response is then server-sent events: the value or the failure of
      each variable, as soon as it is known. With `parts` there are also events with their texts
      while they are generated. With `wait` a watched variable may be one that no call writes yet.
    - `graph` adds the session's graph to the end of the response.
    - `run_name` names the run of the application. The list of sessions shows it.
    - `beats` with `open` promises heartbeats. The server closes the session a minute after the
      last.
    - `close` closes the session after the response, even after a failure.
    """

    calls: tuple[Call, ...] = ()
    steps: tuple[Step, ...] = ()
    session_id: str | None = None
    open: bool = False
    detach: bool = False
    get: tuple[str, ...] = ()
    stream: str | None = None
    criteria: Criterion | None = None
    watch: tuple[str, ...] = ()
    parts: bool = False
    wait: bool = False
    graph: bool = False
    close: bool = False
    run_name: str = ""
    beats: bool = False

    def __post_init__(self) -> None:
        check_run_name(self.run_name)
        reads = bool(self.get or self.watch) or self.stream is not None
        empty = not self.calls and not self.steps
        if empty and (self.session_id is None or not reads):
            raise InvalidRequest(
                "a submit has a call or a step, or reads variables of its session", param="calls"
            )
        if self.open and self.session_id is None:
            raise InvalidRequest("'open' goes with a session_id", param="open")
        if self.open and self.session_id is not None:
            check_id(self.session_id, "session_id")
        for name, read in (("get", self.get), ("watch", self.watch)):
            if len(read) > MAX_ITEMS:
                raise InvalidRequest(f"'{name}' names at most {MAX_ITEMS:,} variables", param=name)
        for variable in self.get:
            check_id(variable, "get")
        if self.stream is not None:
            check_id(self.stream, "stream")
        for variable in self.watch:
            check_id(variable, "watch")
        if bool(self.get) + bool(self.watch) + (self.stream is not None) > 1:
            raise InvalidRequest(
                "a submit may have only one of 'get', 'stream' and 'watch'", param="watch"
            )
        if len(set(self.watch)) < len(self.watch):
            raise InvalidRequest("'watch' names a variable twice: name it once", param="watch")


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBody(StrictBody):
    """The body of POST /v1/get.

    `timeout_s` is the longest wait in seconds; None means no limit. With `wait` the variable may be
    one that no call writes yet. `stream` asks for server-sent events, as does the header
    `Accept: text/event-stream`.
    """

    session_id: str
    semantic_var_id: str
    criteria: Criterion | None = None
    timeout_s: float | None = None
    wait: bool = False
    stream: bool = False

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not 0 <= self.timeout_s <= 86_400:
            raise InvalidRequest("timeout_s must be in [0, 86400]", param="timeout_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepError(StrictBody):
    """Why a client cannot give a variable its value: a code for programs, a message for people."""

    code: str
    message: str

    def __post_init__(self) -> None:
        if not self.code or len(self.code) > 128 or len(self.message) > MAX_ERROR_CHARS:
            raise InvalidRequest(
                f"an error has a code of 1 to 128 characters, and a message of at most "
                f"{MAX_ERROR_CHARS:,}",
                param="error",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVariable(StrictBody):
    """The body of PUT /v1/session/{id}/variable/{var}: text or any JSON value except null.

    With `error` instead of `value` the variable fails.
    """

    value: Any = None
    error: StepError | None = None

    def __post_init__(self) -> None:
        if self.value is None and self.error is None:
            raise InvalidRequest("value must not be null", param="value")
        if self.value is not None and self.error is not None:
            raise InvalidRequest("send either a value or an error", param="error")


def to_wire(value: Any) -> Any:
    """`value` as JSON data. Fields that have their default value are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        body = {}
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            if field.default is dataclasses.MISSING or item != field.default:
                body[field.name.rstrip("_")] = to_wire(item)  # `in_` stands for `in`
        return body
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Mapping):
        return {key: to_wire(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_wire(item) for item in value]
    return value
