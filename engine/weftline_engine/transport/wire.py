"""Encodes verbs and events as frames: a 4-byte length, then a JSON list of tagged objects.

The tag of an object is the name of its dataclass. Both ends of a transport use this module. It
decodes only the classes listed in `_CLASSES`, checks the type of every field, and refuses frames
longer than MOST_BYTES. Nothing is pickled or evaluated.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from weftline_engine import api

# A prompt of a million tokens takes 7 MB, so a frame beyond 64 MiB is a mistake or an attack.
MOST_BYTES = 64 * 1024 * 1024
HEADER_BYTES = 4  # the length of the body, big-endian


class WireError(Exception):
    """A frame is too long, or it does not hold valid messages."""


@dataclass(frozen=True, slots=True)
class Submit:
    op: api.Op


@dataclass(frozen=True, slots=True)
class Feed:
    op: str
    offset: int
    tokens: tuple[int, ...] | None
    text: str | None
    last: bool
    items: tuple[object, ...] | None = None

    @property
    def part(self) -> api.Fed:
        """The part of the payload that is fed."""
        if self.items is not None:
            return list(self.items)
        return self.text or "" if self.tokens is None else self.tokens

    @staticmethod
    def of(op: str, offset: int, part: api.Fed, last: bool) -> Feed:
        """The message of the verb's arguments."""
        if isinstance(part, list):
            return Feed(op, offset, None, None, last, tuple(part))
        tokens, text = (None, part) if isinstance(part, str) else (part, None)
        return Feed(op, offset, tokens, text, last)


@dataclass(frozen=True, slots=True)
class Update:
    op: str
    hints: api.Hints


@dataclass(frozen=True, slots=True)
class Cancel:
    op: str


@dataclass(frozen=True, slots=True)
class Retain:
    context: str
    retention: api.Retention


@dataclass(frozen=True, slots=True)
class Free:
    context: str


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The engine could not start. `message` is one sentence for the user."""

    message: str


@dataclass(frozen=True, slots=True)
class Hello:
    """The server's first message to a host that connects."""

    nonce: str


@dataclass(frozen=True, slots=True)
class Prove:
    """The host's name, its nonce, and the proof that it holds the key."""

    name: str
    nonce: str
    proof: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """The server's proof that it holds the key."""

    proof: str


@dataclass(frozen=True, slots=True)
class Describe:
    """The host's engine, and the text of its tokenizer.json, a file that the server cannot open.

    `process` is a random text that the host's process has chosen. With it the server can
    distinguish a host that comes back from another host with the same name.
    """

    description: api.Description
    tokenizer: str | None
    process: str


@dataclass(frozen=True, slots=True)
class Admitted:
    """The server uses the host's engine from now on."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The server does not take the engine. `message` is one sentence for the host's operator."""

    message: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The sender is alive. `time` is its monotonic clock in seconds."""

    time: float


Joining: TypeAlias = Hello | Prove | Welcome | Describe | Admitted | Refused | Heartbeat
Verb: TypeAlias = Submit | Feed | Update | Cancel | Retain | Free
Message: TypeAlias = Verb | api.Event | api.Description | LoadFailed | Joining

_CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        Submit,
        Feed,
        Update,
        Cancel,
        Retain,
        Free,
        LoadFailed,
        api.Description,
        api.Accepted,
        api.Part,
        api.Items,
        api.Paused,
        api.Finished,
        api.Failed,
        api.ContextMoved,
        api.Availability,
        api.Occupied,
        Hello,
        Prove,
        Welcome,
        Describe,
        Admitted,
        Refused,
        Heartbeat,
    )
}


Reader: TypeAlias = Callable[[Any], Any]  # from a JSON value to a field's value
_READERS: dict[type, dict[str, Reader]] = {}


def encode(messages: typing.Sequence[Message]) -> bytes:
    """Return one frame that holds `messages`. Raises WireError if it exceeds MOST_BYTES."""
    body = json.dumps(
        [{"is": type(one).__name__, **_plain(one)} for one in messages], separators=(",", ":")
    ).encode()
    if len(body) > MOST_BYTES:
        raise WireError(f"a frame of {len(body)} bytes exceeds {MOST_BYTES}")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def length(header: bytes) -> int:
    """Return the body length that a header states. Raises WireError if it exceeds MOST_BYTES."""
    count = int.from_bytes(header, "big")
    if count > MOST_BYTES:
        raise WireError(f"a frame of {count} bytes exceeds {MOST_BYTES}")
    return count


def decode(body: bytes) -> list[Message]:
    """Return the messages of a frame's body. Raises WireError if the body is not valid."""
    try:
        return [_message(one) for one in json.loads(body)]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise WireError(f"a frame holds no message: {error!r}") from None


def _message(value: Any) -> Message:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is not an object")
    message: Message = _build(_CLASSES[value.pop("is")], value)
    return message


def _plain(value: Any) -> dict[str, Any]:
    """Return a dataclass's fields as a dict. `dataclasses.asdict` would copy every token."""
    return {
        name: _plain(one) if dataclasses.is_dataclass(one) else one
        for name in _readers(type(value))
        for one in (getattr(value, name),)
    }


def _build(cls: type, value: dict[str, Any]) -> Any:
    readers = _readers(cls)
    return cls(**{name: readers[name](one) for name, one in value.items()})


def _readers(cls: type) -> dict[str, Reader]:
    """Return the reader of each field of a dataclass, from a cache."""
    if cls not in _READERS:
        hints = typing.get_type_hints(cls)
        _READERS[cls] = {one.name: _reader(hints[one.name]) for one in dataclasses.fields(cls)}
    return _READERS[cls]


def _reader(hint: Any) -> Reader:
    """Return a function from JSON to this type. It raises TypeError or ValueError."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        (only,) = (_reader(one) for one in arguments if one is not types.NoneType)
        return lambda value: None if value is None else only(value)
    if origin is tuple:
        fixed = [_reader(one) for one in arguments if one is not ...]
        item = arguments[0]
        if arguments[1:] != (...,):
            return lambda value: tuple(one(v) for one, v in zip(fixed, value, strict=True))
        if item in (int, str):
            return lambda value: _all(item, value)
        return lambda value: tuple(map(_reader(item), value))
    if hint is object:
        return lambda value: value
    if origin is Mapping:
        return lambda value: dict(_only((dict,), value))
    if origin is dict:
        return lambda value: {str(key): arguments[1](one) for key, one in value.items()}
    if dataclasses.is_dataclass(hint):
        return lambda value: _build(typing.cast(type, hint), value)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return hint
    if hint is float:
        return lambda value: float(_only((int, float), value))
    return lambda value: _only((hint,), value)


def _only(kinds: tuple[type, ...], value: Any) -> Any:
    if type(value) not in kinds:
        raise TypeError(f"{value!r} is not {kinds[0].__name__}")
    return value


def _all(kind: type, value: Any) -> tuple[Any, ...]:
    if set(map(type, value)) - {kind}:
        raise TypeError(f"not all items are {kind.__name__}")
    return tuple(value)
