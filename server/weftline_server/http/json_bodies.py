"""Requests and responses on the wire: strict JSON bodies, JSON errors, clients that leave."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request
from pydantic import TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from weftline.contract.errors import BodyTooLarge, Cancelled, InvalidRequest, WeftlineError
from weftline_server.http.anthropic.error_forms import error_body, is_messages
from weftline_server.http.state import state_of

if TYPE_CHECKING:
    from starlette.types import Receive

T = TypeVar("T")

INLINE_BYTES = 1 << 16  # a longer body is read in a thread
MAX_GROUPS = 400_000  # lists and objects of a body
MAX_VALUES = 1_000_000  # these and numbers, texts and constants


Check = Callable[[Mapping[str, Any]], None]


async def read(request: Request, kind: type[T], check: Check | None = None) -> T:
    """The body as a `kind`. Raises BodyTooLarge, or InvalidRequest naming the field at fault.

    `check` may refuse the body as plain JSON, with the fields that a `kind` does not have.

    Raises Cancelled if the client leaves before it has sent all of the body.
    """
    most = state_of(request.app).config.max_body
    is_packed = _is_packed(request)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise _too_large(most)
    except ClientDisconnect as error:
        raise Cancelled("the client went away") from error
    if is_packed:

        def parse_packed() -> T:
            unpacked = unpack(bytes(body), most)
            check_counts(unpacked)
            return parse(unpacked, kind, check)

        return await asyncio.get_running_loop().run_in_executor(None, parse_packed)
    if len(body) <= INLINE_BYTES:
        return parse(bytes(body), kind, check)
    check_counts(body)
    return await asyncio.get_running_loop().run_in_executor(None, parse, bytes(body), kind, check)


def _is_packed(request: Request) -> bool:
    """Whether the body is in gzip. Raises InvalidRequest for any other encoding."""
    match request.headers.get("content-encoding", "").strip().lower():
        case "" | "identity":
            return False
        case "gzip" | "x-gzip":
            return True
        case other:
            raise InvalidRequest(
                f"a body in the encoding {other[:40]!r} is not read: send it in gzip or without an "
                "encoding",
                param="Content-Encoding",
            )


def unpack(body: bytes, most: int) -> bytes:
    """The bytes that `body` holds in gzip. Raises BodyTooLarge beyond `most` bytes, of which it
    makes no more, and InvalidRequest for what is no gzip."""
    unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # 16 asks for gzip's head and sum
    try:
        unpacked = unpacking.decompress(body, most + 1)
    except zlib.error as error:
        raise InvalidRequest(f"the body is not gzip: {error}", param="body") from error
    if len(unpacked) > most:
        raise _too_large(most)
    if not unpacking.eof or unpacking.unused_data:
        raise InvalidRequest(
            "the body is not one whole gzip stream: it is cut off, or goes on after its end",
            param="body",
        )
    return unpacked


def _too_large(most: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is larger than {most} bytes", param="body")


def check_counts(body: bytes | bytearray) -> None:
    """Raise InvalidRequest for a body of too many values. Those in its texts count too.

    A parser holds the interpreter's lock from the first byte to the last. 400,000 lists take 0.1 s,
    and 1,000,000 numbers as long.
    """
    groups = body.count(b"[") + body.count(b"{")
    if groups > MAX_GROUPS or groups + body.count(b",") > MAX_VALUES:
        raise InvalidRequest(
            f"the body has more than {MAX_GROUPS:,} lists and objects, or {MAX_VALUES:,} values: "
            "split it",
            param="body",
        )


def parse(body: bytes, kind: type[T], check: Check | None = None) -> T:
    """`body` as a `kind`. Raises InvalidRequest, also for NaN, infinity and unknown fields, and
    what `check` raises."""
    try:
        text = body.decode()
        made: T = _adapter(kind).validate_json(text, strict=True)
        plain = _read_json(text)
        if check is not None:
            check(plain)
        return made
    except UnicodeDecodeError as error:
        raise InvalidRequest("the body is not UTF-8", param="body") from error
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not JSON: {error}", param="body") from error
    except ValidationError as error:
        raise _invalid(error) from error


def has_body(request: Request) -> bool:
    """Whether a request has a body, as its headers tell."""
    length = request.headers.get("content-length", "0")
    return length != "0" or "transfer-encoding" in request.headers


def schema(kind: type, *, required: bool = True) -> dict[str, Any]:
    """`openapi_extra` of a route whose body is a `kind`.

    The schema is named here, and made by `with_bodies` when somebody asks for the document: all of
    them take a tenth of a server's start.
    """
    _adapter(kind)  # which the first request would wait for
    name = f"{kind.__module__}.{kind.__qualname__}"
    _BODIES[name] = kind
    content = {"application/json": {"schema": {"$ref": name}}}
    return {"requestBody": {"required": required, "content": content}}


_BODIES: dict[str, type] = {}  # by their full names


def with_bodies(document: dict[str, Any]) -> dict[str, Any]:
    """Put the schemas of the bodies into OpenAPI's `document`; return the parts of all of them, by
    name."""
    definitions: dict[str, Any] = {}
    operations = (one for path in document["paths"].values() for one in path.values())
    for operation in operations:
        for content in operation.get("requestBody", {}).get("content", {}).values():
            adapter = _adapter(_BODIES[content["schema"]["$ref"]])
            made = adapter.json_schema(ref_template="#/components/schemas/{model}")
            for name, part in made.pop("$defs", {}).items():
                assert definitions.setdefault(name, part) == part, f"two types are called {name}"
            content["schema"] = made
    return definitions


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}  # cached: making one takes milliseconds


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def _read_json(text: str) -> Any:
    """The JSON value. Raises where parsers disagree: constants such as NaN, huge numbers, deep
    nesting."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:
        raise InvalidRequest("the body nests too deeply: use fewer levels", param="body") from error
    except (json.JSONDecodeError, InvalidRequest):
        raise
    except ValueError as error:
        # Python refuses an integer of thousands of digits with a plain ValueError.
        raise InvalidRequest("a number in the body has too many digits", param="body") from error


def _refuse(constant: str) -> None:
    raise InvalidRequest(f"{constant} is not a number in JSON", param="body")


def _finite(number: str) -> float:
    value = float(number)
    if value in (float("inf"), float("-inf")):
        raise InvalidRequest(f"the number {number[:40]} is too large", param="body")
    return value


def _invalid(error: ValidationError) -> WeftlineError:
    """The most telling failure: one of our own rules, else the deepest that pydantic found."""
    failures = error.errors(include_url=False)
    for failure in failures:
        cause = failure.get("ctx", {}).get("error")
        if isinstance(cause, WeftlineError):
            return cause
    # Each type of a union fails in its own way. The type that fitted deepest was probably meant.
    found = max(failures, key=lambda failure: len(failure["loc"]))
    where = ".".join(map(str, filter(_is_place, found["loc"]))) or "body"
    return InvalidRequest(f"{where}: {found['msg']}", param=where)


# Pydantic puts the tried types of a union into a failure's path. Names of classes and generics do
# not look like fields; these names do.
_TYPES = frozenset({"str", "int", "float", "bool", "list", "dict", "tuple", "none"})


def _is_place(part: int | str) -> bool:
    """Whether `part` of a failure's path is a field or an index."""
    if isinstance(part, int):
        return True
    return part.isidentifier() and part[0].islower() and part not in _TYPES


def error_response(error: WeftlineError, path: str) -> JSONResponse:
    """The error's status and body, with Retry-After if a later attempt may succeed.

    The clients of some paths read Anthropic's form.
    """
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    body = error_body(error) if is_messages(path) else error.to_body()
    return JSONResponse(body, status_code=error.status, headers=headers)


async def disconnect(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def or_disconnect(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`. Raises Cancelled, and cancels `work`, if the client leaves first.

    ASGI does not cancel a handler when its client leaves. Without this the calls of a get that does
    not stream would run to their end.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.create_task(disconnect(request.receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Cancelled("the client went away")
        return task.result()
    finally:
        for pending in (task, watch):
            pending.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)
