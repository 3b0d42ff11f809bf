"""Frames hold every message of the contract, and no other data is accepted."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.msgpack import Ext

from weftline.contract.vectors import Vectors
from weftline_engine import api
from weftline_engine.transport import wire

HEAD: dict[str, Any] = {"op": "a", "attempt": 2, "sequence": 7, "time": 1.5}
OP = api.Op(
    id="a",
    kind=api.Kind.GENERATE,
    context="c",
    attempt=2,
    parent="p",
    tokens=(1, 2, 3),
    sampling=api.SamplingParams(
        max_tokens=5, seed=None, stop=("é", "\n"), temperature=1, pause_on=("(",)
    ),
    salt="s",
    hints=api.Hints(application="x", token_bound=4, expected_pause=0.5),
)
USAGE = api.Usage(prompt_tokens=3, cached_tokens=1, output_tokens=2, started=0.25, filled=0.5)
MESSAGES: list[Any] = [
    wire.Submit(OP),
    wire.Submit(api.Op(id="b", kind=api.Kind.FILL, context="d", text="hello", open=True)),
    wire.Feed("a", 3, (4, 5), None, True),
    wire.Feed("a", 3, None, "text", False),
    wire.Update("a", api.Hints(depth=3)),
    wire.Cancel("a"),
    wire.Retain("c", api.Retention.SWAP),
    wire.Free("c"),
    wire.LoadFailed("no such model"),
    api.Description(model="m", default_sampling={"top_p": 0.5}),
    api.Accepted(**HEAD),
    api.Part(**HEAD, offset=0, tokens=(9,), text="海"),
    api.Paused(**HEAD, reason="tool", usage=USAGE),
    api.Finished(**HEAD, reason=api.FinishReason.STOP, usage=USAGE),
    api.Finished(
        **HEAD,
        reason=api.FinishReason.FILLED,
        usage=USAGE,
        value={"scores": [[0.5, 1]], "n": None},
    ),
    api.Finished(
        **HEAD, reason=api.FinishReason.STOP, usage=USAGE, value=Vectors.of([[0.5, 1], [2, 3]])
    ),
    api.Items(**HEAD, offset=1, values=(Vectors.of([[0.5]]), {"score": 1})),
    wire.Feed("s", 1, None, None, False, (Vectors.of([[0.5, 1]]), "text")),
    wire.Submit(api.Op(id="s", kind="search", context="f", inputs={"vectors": Vectors.of([[1]])})),
    wire.Submit(api.Op(id="e", kind="embed", context="f", inputs={"texts": ["a", "b"]})),
    api.Description(model="m", kinds=("embed",)),
    api.Failed(**HEAD, error="EngineFailed", message="why", retryable=True),
    api.ContextMoved(**HEAD, context="c", residency=api.Residency.HOST, tokens=12),
]


def test_every_message_comes_back_equal() -> None:
    """One frame carries all kinds of messages, and its header gives its length."""
    frame = wire.encode(MESSAGES)
    body = frame[wire.HEADER_BYTES :]
    assert wire.length(frame[: wire.HEADER_BYTES]) == len(body)
    found = wire.decode(body)
    assert found == MESSAGES
    submitted = found[0]
    assert isinstance(submitted, wire.Submit)
    assert submitted.op.kind == api.Kind.GENERATE


@pytest.mark.parametrize("odd", ["\ud83d", 2**70, -(2**70), {"\ud83d": [1]}, {"a": ("\ud83d",)}])
def test_what_only_json_can_hold_comes_back_equal(odd: Any) -> None:
    """Half a character has no UTF-8, and a number may have more than 64 bits. A client's JSON can
    hold both, also beside vectors."""
    items = json.loads(json.dumps([odd, "whole", True, None, 1.5]))
    inputs = {"items": items, "vectors": Vectors.of([[1, 2]])}
    sent = [wire.Submit(api.Op(id="e", kind="ingest", context="f", inputs=inputs))]
    assert wire.decode(wire.encode(sent)[wire.HEADER_BYTES :]) == sent


def test_vectors_are_bytes() -> None:
    """A frame of 256 vectors has the bytes of their numbers, and little else."""
    vectors = Vectors(bytes(4 * 384 * 256), 384)
    finished = api.Finished(**HEAD, reason=api.FinishReason.STOP, usage=USAGE, value=vectors)
    assert len(wire.encode([finished])) - len(vectors.data) < 400


@pytest.mark.parametrize(
    "value",
    [
        Ext(1, b""),
        Ext(1, bytes(4)),
        Ext(1, bytes([0, 0, 0, 2]) + bytes(4)),
        Ext(2, b"{"),
        Ext(2, b"[" * 100_000),
        Ext(3, b"1"),
    ],
)
def test_wrong_extensions_are_refused(value: Ext) -> None:
    """Vectors without whole rows, broken JSON, and an extension of another number."""
    with pytest.raises(wire.WireError):
        wire.decode(fed(value))
    [message] = wire.decode(fed(Ext(1, bytes([0, 0, 0, 1]) + bytes(4))))
    assert isinstance(message, wire.Feed) and message.items == (Vectors.of([[0]]),)


def fed(item: object) -> bytes:
    """A frame's body that feeds an item."""
    feed = wire.Feed("a", 0, None, None, True, (item,))
    return msgspec.msgpack.encode([{"is": "Feed", **dataclasses.asdict(feed)}])


def test_subclasses_of_numbers_and_texts_are_numbers_and_texts() -> None:
    """Costs that numpy has averaged are its float64. What has no JSON is refused at once."""

    class Name(str): ...

    costs = api.KvCosts(step_s=np.float64(0.5), fill_s=1.0, chunk=8)
    sent = api.Description(model=Name("m"), kv_costs=costs)
    [found] = wire.decode(wire.encode([sent])[wire.HEADER_BYTES :])
    assert found == sent and isinstance(found, api.Description) and found.kv_costs is not None
    assert (type(found.model), type(found.kv_costs.step_s)) == (str, float)
    with pytest.raises(TypeError, match="is not JSON"):
        wire.encode([wire.Submit(api.Op(id="e", kind="k", context="f", inputs={"x": object()}))])


@pytest.mark.parametrize(
    "said",
    [
        1,
        [1],
        [None],
        [{"is": "Popen", "args": "sh"}],
        [{"is": "Cancel"}],
        [{"is": "Cancel", "op": 3}],
        [{"is": "Cancel", "op": "a", "more": 1}],
        [{"is": "Retain", "context": "c", "retention": "burn"}],
        [{"is": "Feed", "op": "a", "offset": 0, "tokens": [True], "text": None, "last": True}],
        [{"is": "Feed", "op": "a", "offset": 0, "tokens": 3, "text": None, "last": True}],
        [{"is": "Submit", "op": {"id": "a", "kind": "k", "context": "c", "inputs": [1]}}],
    ],
)
def test_anything_else_is_refused(said: object) -> None:
    """Unknown classes, missing, additional and wrong fields."""
    with pytest.raises(wire.WireError):
        wire.decode(msgspec.msgpack.encode(said))


@pytest.mark.parametrize("body", [b"", b"\x90x", b"\xc1", b"\x91" * 100_000, b'[{"is": "Cancel"}]'])
def test_what_is_no_messagepack_is_refused(body: bytes) -> None:
    """Broken frames, deep nesting, and JSON, in which earlier versions wrote frames."""
    with pytest.raises(wire.WireError):
        wire.decode(body)


def test_frames_are_bounded() -> None:
    """A reader refuses a long frame by its header, and a writer does not send one."""
    with pytest.raises(wire.WireError, match="exceeds"):
        wire.length(b"\xff\xff\xff\xff")
    with pytest.raises(wire.WireError, match="exceeds"):
        wire.encode([wire.LoadFailed("x" * (wire.MOST_BYTES + 1))])
