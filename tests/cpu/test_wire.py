"""Frames hold every message of the contract, and no other data is accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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
        value={"vectors": [[0.5, 1]], "n": None},
    ),
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


def test_half_a_character_comes_back_equal() -> None:
    """Such text has no UTF-8. A client's JSON can hold it, as an escape."""
    half = [wire.Submit(api.Op(id="e", kind="embed", context="f", inputs={"texts": ["\ud83d"]}))]
    assert wire.decode(wire.encode(half)[wire.HEADER_BYTES :]) == half


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
    "body",
    [
        b"",
        b"{}x",
        b"[1]",
        b"[null]",
        b'[{"is": "Popen", "args": "sh"}]',
        b'[{"is": "Cancel"}]',
        b'[{"is": "Cancel", "op": 3}]',
        b'[{"is": "Cancel", "op": "a", "more": 1}]',
        b'[{"is": "Retain", "context": "c", "retention": "burn"}]',
        b'[{"is": "Feed", "op": "a", "offset": 0, "tokens": [true], "text": null, "last": true}]',
        b'[{"is": "Feed", "op": "a", "offset": 0, "tokens": 3, "text": null, "last": true}]',
        b'[{"is": "Submit", "op": {"id": "a", "kind": "k", "context": "c", "inputs": [1]}}]',
        b"[" * 100_000,
    ],
)
def test_anything_else_is_refused(body: bytes) -> None:
    """Broken JSON, unknown classes, missing, additional and wrong fields, and deep nesting."""
    with pytest.raises(wire.WireError):
        wire.decode(body)


def test_frames_are_bounded() -> None:
    """A reader refuses a long frame by its header, and a writer does not send one."""
    with pytest.raises(wire.WireError, match="exceeds"):
        wire.length(b"\xff\xff\xff\xff")
    with pytest.raises(wire.WireError, match="exceeds"):
        wire.encode([wire.LoadFailed("x" * (wire.MOST_BYTES + 1))])
