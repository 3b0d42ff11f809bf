"""Every error that a weftline user can meet, as one tree. Each has an HTTP status and a JSON form.

    WeftlineError                      500
    ├── InvalidRequest                 400  a field is missing, malformed or out of range
    │   ├── ContextTooLong             400  the prompt does not fit the model's context
    │   └── BodyTooLarge               413  the request has more bytes than the server takes
    ├── Unauthorized                   401  no key, or a wrong one
    ├── Forbidden                      403  a web page asks a server without keys
    ├── UnknownSession                 404
    │   └── ServerRestarted            410  the session belongs to an earlier run of the server
    ├── UnknownVariable                404
    ├── UnknownCall                    404
    ├── UnknownModel                   404
    ├── UnknownResponse                404
    ├── UnknownConversation            404
    ├── UnknownStore                   404
    ├── UnknownRoute                   404  (client side) no weftline server is at this address
    ├── GraphError                     422  the calls of a submit do not make a graph
    │   ├── UnknownPlaceholder         422  prompt and placeholders have different names
    │   ├── MissingInput               422  an input has neither a value nor a variable
    │   ├── DuplicateProducer          422  two calls write one variable
    │   └── CyclicGraph                422  a call waits for its own output
    ├── NoProducer                     409  nothing will ever set this variable
    ├── AlreadySet                     409  the variable has a value or a producer
    ├── KeyReused                      409  the Idempotency-Key came with another request
    ├── Timeout                        408  `timeout_s` passed before the variable was ready
    ├── TransformFailed                422  an output is not what its transform expects
    ├── ClientStepFailed               422  a step that the client computes has failed there
    ├── ClientGone                     410  the client left before it computed its step
    ├── BudgetExceeded                 422  the session has used up its budget
    ├── Cancelled                      409  the call, its session or its last reader went away
    ├── Interrupted                    409  the server ended while a call with an effect ran
    ├── Skipped                        409  no branch took the variable
    ├── Overloaded                     429  a limit is reached; retry after `retry_after_s`
    ├── EngineFailed                   502  the engine gave up on the call
    ├── EngineUnavailable              503  no engine is ready (starting, restarting, draining)
    ├── StorageFull                    503  the server cannot write its store of sessions
    ├── ConnectionFailed               503  (client side) the server cannot be reached
    └── ClientFailed                   500  (client side) code in this process raised another error

A message says what is wrong and what to do. It never holds a path or a stack trace of the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Refusal:
    """A response that was no success, as it came: its status, and its JSON or else its text."""

    status: int
    body: object


class WeftlineError(Exception):
    """The base class of all errors.

    `param` is the field or variable at fault. `call` is the name of the call that failed first.
    `retry_after_s` is how many seconds to wait before a retry. Each may be None.
    """

    status: ClassVar[HTTPStatus] = HTTPStatus.INTERNAL_SERVER_ERROR
    refusal: Refusal | None = None  # the whole response that the error was read from

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        call: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.call = call
        self.retry_after_s = retry_after_s

    @property
    def type(self) -> str:
        """The error's name on the wire, which is the name of its class."""
        return type(self).__name__

    @property
    def code(self) -> str | None:
        """A code for programs: the one of OpenAI's API, or the one that a client step gave."""
        return _CODES.get(self.type)

    def to_body(self) -> dict[str, Any]:
        """The JSON body as OpenAI clients read it, with the fields `call` and `retry_after_s`."""
        error: dict[str, Any] = {
            "message": self.message,
            "type": self.type,
            "code": self.code,
            "param": self.param,
            "call": self.call,
        }
        if self.retry_after_s is not None:
            error["retry_after_s"] = self.retry_after_s
        return {"error": error}

    @staticmethod
    def from_body(body: object, status: int) -> WeftlineError:
        """The error that `body` describes.

        For a body of an unknown type or shape, the class is chosen by the HTTP status.
        """
        error = body.get("error") if isinstance(body, dict) else None
        if not isinstance(error, dict):
            text = str(body)[:200]
            return _nearest(status)(f"the server answered {status} without an error body: {text}")
        cls = _BY_NAME.get(str(error.get("type"))) or _nearest(status)
        if cls is InvalidRequest and status == HTTPStatus.NOT_FOUND:
            cls = UnknownRoute  # the web framework responded, because no route matched
        made = cls(
            str(error.get("message", "")),
            param=error.get("param"),
            call=error.get("call"),
            retry_after_s=error.get("retry_after_s"),
        )
        if isinstance(made, ClientStepFailed):
            made.own_code = error.get("code")
        return made

    def of_call(self, name: str) -> WeftlineError:
        """Mark this error as the failure of call `name`, unless it already names a call."""
        if self.call is None:
            self.call = name
        return self


class InvalidRequest(WeftlineError):
    """A field is missing, malformed or out of range. `param` names it.

    This class is not a ValueError, because frameworks treat a ValueError as an answer that cannot
    be parsed, and go on without the answer. LlamaIndex's Refine does so.
    """

    status = HTTPStatus.BAD_REQUEST


class ContextTooLong(InvalidRequest):
    """The prompt has more tokens than the model can hold."""


class BodyTooLarge(InvalidRequest):
    """The request has more bytes than the server accepts."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class Unauthorized(WeftlineError):
    """No API key, or a wrong one."""

    status = HTTPStatus.UNAUTHORIZED


class Forbidden(WeftlineError):
    """A request to a server without keys that a web page may have sent."""

    status = HTTPStatus.FORBIDDEN


class UnknownSession(WeftlineError):
    """This run of the server has no session with this id for this key."""

    status = HTTPStatus.NOT_FOUND


class ServerRestarted(UnknownSession):
    """The session belongs to an earlier run of the server, which ended with all its sessions."""

    status = HTTPStatus.GONE


class UnknownVariable(WeftlineError):
    """The session has no variable of this id."""

    status = HTTPStatus.NOT_FOUND


class UnknownCall(WeftlineError):
    """The session has no call of this id."""

    status = HTTPStatus.NOT_FOUND


class UnknownModel(WeftlineError):
    """No engine serves this model."""

    status = HTTPStatus.NOT_FOUND


class UnknownResponse(WeftlineError):
    """The server keeps no response with this id for this key."""

    status = HTTPStatus.NOT_FOUND


class UnknownConversation(WeftlineError):
    """The server keeps no conversation, or no item of one, with this id for this key."""

    status = HTTPStatus.NOT_FOUND


class UnknownStore(WeftlineError):
    """The server has no vector store of this name."""

    status = HTTPStatus.NOT_FOUND


class UnknownRoute(WeftlineError):
    """The server has no such route: the base URL has a wrong path, or names another server."""

    status = HTTPStatus.NOT_FOUND


class GraphError(WeftlineError):
    """The submitted calls do not make a graph. None of them was accepted."""

    status = HTTPStatus.UNPROCESSABLE_ENTITY


class UnknownPlaceholder(GraphError):
    """Prompt and placeholders do not name the same inputs and outputs."""


class MissingInput(GraphError):
    """An input placeholder has neither a value nor a variable."""


class DuplicateProducer(GraphError):
    """Two outputs would write one variable."""


class CyclicGraph(GraphError):
    """A call depends on its own output, directly or through other calls."""


class NoProducer(WeftlineError):
    """The variable is empty, and no call produces it. A get with `wait` still waits for it."""

    status = HTTPStatus.CONFLICT


class AlreadySet(WeftlineError):
    """A variable is written once, and this one already has a value or a producer."""

    status = HTTPStatus.CONFLICT


class KeyReused(WeftlineError):
    """The Idempotency-Key was used for another request, or its response is not kept any more."""

    status = HTTPStatus.CONFLICT


class Timeout(WeftlineError):
    """`timeout_s` passed before the variable was ready. It may still become ready."""

    status = HTTPStatus.REQUEST_TIMEOUT


class TransformFailed(WeftlineError):
    """An output is not what its transform expects.

    The message is the one that the framework's own parser would give.
    """

    status = HTTPStatus.UNPROCESSABLE_ENTITY


class ClientStepFailed(WeftlineError):
    """The client could not compute one of its steps.

    The message is that of the client's exception. `code` names the failure, such as the class of
    the exception. `param` is the variable of the step's output.
    """

    status = HTTPStatus.UNPROCESSABLE_ENTITY
    own_code: str | None = None

    @property
    def code(self) -> str | None:
        return self.own_code


class ClientGone(WeftlineError):
    """The client had no request open for `lease_s` seconds, so it cannot compute its step."""

    status = HTTPStatus.GONE


class BudgetExceeded(WeftlineError):
    """The session has used up its budget of calls, tokens or another resource, named by `param`.

    A retry does not help.
    """

    status = HTTPStatus.UNPROCESSABLE_ENTITY


class Cancelled(WeftlineError):
    """The call was cancelled, its session was closed, or its last reader left."""

    status = HTTPStatus.CONFLICT


class Skipped(WeftlineError):
    """The variable belongs to the side of a branch that was not taken."""

    status = HTTPStatus.CONFLICT


class Interrupted(WeftlineError):
    """The server ended while a call ran that must not run twice. Its effect may have happened."""

    status = HTTPStatus.CONFLICT


class Overloaded(WeftlineError):
    """A limit is reached. Retry after `retry_after_s` seconds."""

    status = HTTPStatus.TOO_MANY_REQUESTS


class EngineFailed(WeftlineError):
    """The engine gave up on the call."""

    status = HTTPStatus.BAD_GATEWAY


class EngineUnavailable(WeftlineError):
    """No engine is ready: all are starting, restarting or draining."""

    status = HTTPStatus.SERVICE_UNAVAILABLE


class StorageFull(WeftlineError):
    """The server keeps its sessions on disk and cannot write there now. Nothing was accepted."""

    status = HTTPStatus.SERVICE_UNAVAILABLE


class ConnectionFailed(WeftlineError):
    """The client cannot reach the server, or lost the connection.

    `began` is True if a response had begun.
    """

    status = HTTPStatus.SERVICE_UNAVAILABLE
    began = False


class ClientFailed(WeftlineError):
    """Code in this process, such as an instrumented HTTP client, raised an exception of its own.

    `__cause__` is that exception, with its traceback. `began` is True if a response had begun.
    """

    began = False

    @classmethod
    def of(cls, cause: BaseException, *, began: bool = False) -> ClientFailed:
        """The error for a request that `cause` ended."""
        name, said = type(cause).__name__, str(cause)
        what = f"{name}: {said}" if said else name
        made = cls(f"code in this process ended a request: {what}. Its traceback says where")
        made.began, made.__cause__ = began, cause
        return made


def from_name(name: str, default: type[WeftlineError]) -> type[WeftlineError]:
    """The class called `name`, or `default` if there is none."""
    return _BY_NAME.get(name, default)


def _tree(cls: type[WeftlineError]) -> dict[str, type[WeftlineError]]:
    found = {cls.__name__: cls}
    for child in cls.__subclasses__():
        found |= _tree(child)
    return found


_BY_NAME = _tree(WeftlineError)

# A traceback names the module from which users import the errors.
for _error in (WeftlineError, *_BY_NAME.values()):
    _error.__module__ = "weftline.errors"

# OpenAI clients compare these codes. The other types have none.
_CODES = {
    "ContextTooLong": "context_length_exceeded",
    "UnknownModel": "model_not_found",
    "StorageFull": "storage_full",
    "Interrupted": "interrupted",
}

_BY_STATUS: dict[int, type[WeftlineError]] = {
    400: InvalidRequest,
    401: Unauthorized,
    403: Forbidden,
    422: GraphError,
    429: Overloaded,
    502: EngineFailed,
    503: EngineUnavailable,
}


def _nearest(status: int) -> type[WeftlineError]:
    return _BY_STATUS.get(status, WeftlineError)
