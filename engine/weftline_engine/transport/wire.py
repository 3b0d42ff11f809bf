"""Encodes verbs and events as frames: a 4-byte length, then tagged objects in MessagePack.

The tag of an object is the name of its dataclass. Both ends of a transport use this module. It
decodes only the classes listed in `_CLASSES`, checks the type of every field with msgspec, and
refuses frames longer than MOST_BYTES. Nothing is pickled or evaluated. Vectors travel as bytes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

import msgspec
from msgspec.msgpack import Ext

from weftline.contract.vectors import Vectors
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
class ClaimRoom:
    claim: api.Claim


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The engine could not start. `message` is one sentence for the user."""

    message: str


@dataclass(frozen=True, slots=True)
class Hello:
    """The server's first message to a host that connects. `server` is a random text that names this
    run of the server: one server may have several addresses.
    """

    nonce: str
    server: str


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
Verb: TypeAlias = Submit | Feed | Update | Cancel | Retain | Free | ClaimRoom
Message: TypeAlias = Verb | api.Event | api.Description | LoadFailed | Joining

_EVENTS = (
    api.Accepted,
    api.Part,
    api.Items,
    api.Paused,
    api.Finished,
    api.Failed,
    api.ContextMoved,
    api.Availability,
    api.Occupied,
    api.Elsewhere,
)
_CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (*get_args(Verb), *get_args(Joining), *_EVENTS, api.Description, LoadFailed)
}
# The names of the fields of each.
_NAMES: dict[type, tuple[str, ...]] = {
    cls: tuple(one.name for one in dataclasses.fields(cls)) for cls in _CLASSES.values()
}


# The types that MessagePack does not have: vectors, and JSON text.
_VECTORS, _JSON = 1, 2
_WIDTH_BYTES = 4  # of the vectors, before their numbers


def _as_plain(value: object) -> object:
    """The vectors, or the number or text that a value of a subclass is, such as numpy's float64."""
    if isinstance(value, Vectors):
        return Ext(_VECTORS, value.width.to_bytes(_WIDTH_BYTES, "big") + value.data)
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{value!r} is not JSON")


def _ext(code: int, data: memoryview) -> object:
    """What an extension stands for. Raises ValueError for one that `_as_plain` does not make."""
    match code:
        case 1:
            return Vectors(bytes(data[_WIDTH_BYTES:]), int.from_bytes(data[:_WIDTH_BYTES], "big"))
        case 2:
            return json.loads(bytes(data))
    raise ValueError(f"no extension has the number {code}")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_as_plain)
_DECODER = msgspec.msgpack.Decoder(ext_hook=_ext)


def encode(messages: Sequence[Message]) -> bytes:
    """Return one frame that holds `messages`. Raises WireError if it exceeds MOST_BYTES.

    Numbers in messages are finite.
    """
    tagged = [{"is": type(one).__name__, **_fields(one)} for one in messages]
    try:
        body = _ENCODER.encode(tagged)
    except (UnicodeEncodeError, OverflowError):
        body = _ENCODER.encode(_escaped(tagged))
    if len(body) > MOST_BYTES:
        raise WireError(f"a frame of {len(body)} bytes exceeds {MOST_BYTES}")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def _escaped(value: Any) -> Any:
    """`value` with JSON in place of what only JSON can hold: half a character, a number of more
    than 64 bits."""
    if dataclasses.is_dataclass(value):
        return {one.name: _escaped(getattr(value, one.name)) for one in dataclasses.fields(value)}
    match value:
        case str() | int():
            try:
                _ENCODER.encode(value)
            except (UnicodeEncodeError, OverflowError):
                return Ext(_JSON, json.dumps(value).encode())
        case list() | tuple():
            return [_escaped(one) for one in value]
        case Mapping():
            if any(isinstance(_escaped(key), Ext) for key in value):
                return Ext(_JSON, json.dumps(dict(value)).encode())
            return {key: _escaped(one) for key, one in value.items()}
    return value


def length(header: bytes) -> int:
    """Return the body length that a header states. Raises WireError if it exceeds MOST_BYTES."""
    count = int.from_bytes(header, "big")
    if count > MOST_BYTES:
        raise WireError(f"a frame of {count} bytes exceeds {MOST_BYTES}")
    return count


def decode(body: bytes) -> list[Message]:
    """Return the messages of a frame's body. Raises WireError if the body is not valid."""
    try:
        return [_message(one) for one in _DECODER.decode(body)]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise WireError(f"a frame holds no message: {error!r}") from None


def _message(value: Any) -> Message:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is not an object")
    cls = _CLASSES[value.pop("is")]
    if more := value.keys() - _NAMES[cls]:
        raise TypeError(f"{cls.__name__} has no {', '.join(more)}")
    message: Message = msgspec.convert(value, cls)
    return message


def _fields(one: Message) -> dict[str, Any]:
    return {name: getattr(one, name) for name in _NAMES[type(one)]}
