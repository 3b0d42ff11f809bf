"""A fault of one op affects no other op, and the error says what it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ReferenceType, ref

import pytest
import torch
from torch import Tensor

from weftline_engine.api import (
    Accepted,
    ContextMoved,
    Failed,
    Finished,
    FinishReason,
    Kind,
    Op,
    Part,
    Residency,
    Retention,
)
from weftline_engine.own.embedded.host_device import HostBlocks

Make = Callable[..., Any]


def test_events_come_in_order(make_bench: Make, generate: Make) -> None:
    """An op is accepted, streams its parts, finishes, and reports its context. The numbers have no
    gap."""
    bench = make_bench()
    outcome = bench.run(generate("op", [1, 2, 3], max_tokens=2))[0]
    kinds = [type(event) for event in outcome.events]
    assert kinds == [Accepted, Part, Part, Finished, ContextMoved]
    numbers = [event.sequence for event in outcome.events]
    assert numbers == list(range(1, 6))
    moved = outcome.events[-1]
    # The second token was sampled, but its keys were never computed.
    assert (moved.context, moved.residency, moved.tokens) == ("op.context", Residency.RESIDENT, 4)
    assert outcome.finished.reason is FinishReason.LENGTH
    assert (outcome.finished.usage.prompt_tokens, outcome.finished.usage.output_tokens) == (3, 2)


def test_nan_fails_one_request_and_no_other(
    make_bench: Make, generate: Make, tokens_of: Make
) -> None:
    """Three requests share a prefix, and one gets NaN logits at its third token. Only that one
    fails. The others, and a later one on the same prompt, give the same tokens as without it.
    """
    prefix = tokens_of(1, 40)
    prompts = {name: (*prefix, *tokens_of(i, 9)) for i, name in enumerate("abc")}
    expected = {name: make_bench().run(generate(name, p))[0].tokens for name, p in prompts.items()}
    seen = 0

    def probe(logits_RV: Any, ops: list[str]) -> None:
        nonlocal seen
        if "b" in ops:
            seen += 1
            if seen == 3:
                logits_RV[ops.index("b")] = float("nan")

    bench = make_bench(probe=probe)
    outcomes = bench.run(*[generate(name, prompt) for name, prompt in prompts.items()])
    assert outcomes[1].failed.error == "EngineFailed"
    assert "not finite" in outcomes[1].failed.message
    assert outcomes[1].tokens == expected["b"][:2]
    assert [outcomes[0].tokens, outcomes[2].tokens] == [expected["a"], expected["c"]]
    seen = 10
    again = bench.run(generate("b2", prompts["b"]))[0]
    assert again.tokens == expected["b"]


def test_nan_in_the_cache_reaches_no_other_request(
    make_bench: Make, generate: Make, tokens_of: Make
) -> None:
    """A failed request's blocks held NaN. The next owner of a block must not read it, not even in
    rows that it has not written yet, because 0 * NaN is NaN.
    """
    prompt = tokens_of(1, 33)
    expected = make_bench(blocks=4).run(generate("op", prompt))[0].tokens
    bench: Any = make_bench(blocks=4, probe=lambda logits, ops: bench.core.cache.fill(float("nan")))
    bench.submit([generate("bad", prompt)])
    bench.step()
    assert bench.run() == []
    assert bench.outcomes["bad"].failed.error == "EngineFailed"
    bench.core.probe = None
    assert bench.run(generate("op", prompt))[0].tokens == expected


def test_cancel_takes_effect_before_the_next_step(make_bench: Make, generate: Make) -> None:
    """The cancelled op ends at once and leaves no context. The other one runs to its end."""
    bench = make_bench()
    bench.submit([generate("a", [1, 2, 3], max_tokens=400), generate("b", [4, 5])])
    bench.step()
    bench.core.cancel("a")
    events = bench.step()
    assert [type(event) for event in events if event.op == "a"] == [Failed]
    assert bench.outcomes["a"].failed.error == "Cancelled"
    bench.run()
    assert len(bench.outcomes["b"].tokens) == 12
    assert bench.core.book.contexts.named.keys() == {"b.context"}


def test_freeing_everything_empties_the_cache(
    make_bench: Make, generate: Make, tokens_of: Make
) -> None:
    """After 20 ops whose contexts are freed, all blocks are available again."""
    bench = make_bench(blocks=32)
    for i in range(20):
        bench.run(generate(f"op{i}", tokens_of(i, 30)))
        bench.core.free(f"op{i}.context")
    scheduler = bench.core.book.scheduler
    assert (scheduler.tree.available, scheduler.contexts.named) == (32, {})


@pytest.mark.parametrize(
    ("op", "error", "says"),
    [
        ({"tokens": (1, 256)}, "InvalidRequest", "0 to 255"),
        ({"tokens": (-1,)}, "InvalidRequest", "0 to 255"),
        ({"tokens": ()}, "InvalidRequest", "prompt is empty"),
        ({"text": "hello"}, "InvalidRequest", "token ids"),
        ({"tokens": (1,) * 128}, "ContextTooLong", "is 128 tokens, at least one"),
        ({"tokens": (1,), "parent": "nobody"}, "InvalidRequest", "nobody does not exist"),
        ({"tokens": (1,), "context": "taken"}, "InvalidRequest", "taken exists already"),
        ({"tokens": (1,), "parent": "taken", "salt": "me"}, "InvalidRequest", "another salt"),
        ({"tokens": (1,), "sampling": None}, "InvalidRequest", "max_tokens"),
    ],
)
def test_bad_ops_are_refused(
    op: dict[str, Any], error: str, says: str, make_bench: Make, generate: Make, fill: Make
) -> None:
    """A bad op fails with a reason. The engine runs the next good one."""
    bench = make_bench(blocks=8)
    bench.run(fill("f", [1, 2, 3], context="taken"))
    good = generate("good", [1])
    words = {"sampling": good.sampling, "context": "c", **op}
    bad = bench.run(Op(id="bad", kind=Kind.GENERATE, **words))[0]
    assert bad.failed.error == error
    assert says in bad.failed.message
    assert bench.run(good)[0].finished is not None


def test_ops_wait_for_their_parent_and_fail_with_it(
    make_bench: Make, generate: Make, fill: Make
) -> None:
    """A grandchild is submitted before anything has run. It fails when its grandparent is
    cancelled.
    """
    bench = make_bench()
    bench.submit(
        [
            fill("parent", [1, 2, 3]),
            generate("child", [4], parent="parent.context"),
            generate("grandchild", [5], parent="child.context"),
        ]
    )
    bench.core.cancel("parent")
    bench.run()
    errors = {name: outcome.failed.error for name, outcome in bench.outcomes.items()}
    assert errors == {"parent": "Cancelled", "child": "EngineFailed", "grandchild": "EngineFailed"}


def test_output_ends_where_the_context_does(make_bench: Make, generate: Make) -> None:
    """The context limit is 128 tokens, so a prompt of 120 leaves room for 8."""
    outcome = make_bench(blocks=8).run(generate("op", (1,) * 120, max_tokens=100))[0]
    assert len(outcome.tokens) == 8
    assert outcome.finished.reason is FinishReason.LENGTH


def test_a_new_attempt_replaces_the_old(make_bench: Make, generate: Make) -> None:
    """A repeated op of the same attempt is ignored. A newer attempt ends the older one: no
    event of the older one follows."""
    bench = make_bench()
    bench.submit([generate("op", [1, 2], max_tokens=300)])
    bench.step()
    bench.submit([generate("op", [1, 2], max_tokens=300), generate("op", [1, 2], attempt=1)])
    events = []
    while bench.core.busy:
        events += bench.core.step()
    assert {event.attempt for event in events} == {1}
    assert sum(isinstance(event, Part) for event in events) == 12


def test_a_step_that_breaks_fails_its_ops_only(
    make_bench: Make, generate: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step runs out of memory: its ops fail, and the engine goes on."""
    bench = make_bench()

    def forward(*_: object) -> Tensor:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(bench.core.worker.decoder, "forward", forward)
        failed = bench.run(generate("a", [1]), generate("b", [2]))
    assert [outcome.failed.error for outcome in failed] == ["EngineFailed", "EngineFailed"]
    assert bench.run(generate("c", [3]))[0].finished is not None


def test_a_step_that_breaks_on_one_sequence_fails_it_alone(
    make_bench: Make, generate: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model raises when one of five sequences is in the batch. The batch is halved until that
    one is alone, and the others' tokens are those of a run without it.
    """
    bench = make_bench()
    healthy = ["a", "b", "d", "e"]
    alone = bench.run(*(generate(name, [1, 2, ord(name)]) for name in healthy))
    other = make_bench()
    real = other.core.worker.forward

    def forward(plan: Any, last: Any) -> Tensor:
        if any(chunk.sequence.op.id == "bad" for chunk in plan.chunks):
            raise IndexError("a bug for this prompt")
        return real(plan, last)

    monkeypatch.setattr(other.core.worker, "forward", forward)
    found = other.run(
        *(generate(name, [1, 2, ord(name)]) for name in healthy[:2]),
        generate("bad", [3]),
        *(generate(name, [1, 2, ord(name)]) for name in healthy[2:]),
    )
    assert [one.failed is None for one in found] == [True, True, False, True, True]
    assert [one.tokens for one in found if one.failed is None] == [one.tokens for one in alone]


def test_a_failed_step_frees_its_tensors_before_its_halves_run(
    make_bench: Make, generate: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step of two sequences runs out of memory. Its activations are gone when each sequence is
    computed alone, which needs their memory."""
    bench = make_bench()
    real, lost, alive = bench.core.worker.forward, list[ReferenceType[Tensor]](), list[bool]()

    def forward(plan: Any, last: Any) -> Tensor:
        if len(plan.chunks) > 1:
            activations = torch.zeros(1000)
            lost.append(ref(activations))
            raise torch.OutOfMemoryError("CUDA out of memory")
        alive.extend(one() is not None for one in lost)
        return real(plan, last)

    monkeypatch.setattr(bench.core.worker, "forward", forward)
    found = bench.run(generate("a", [1], max_tokens=1), generate("b", [2], max_tokens=1))
    assert [one.failed for one in found] == [None, None]
    assert alive == [False, False]


@pytest.mark.parametrize("full", ["save", "restore"])
def test_a_swap_that_runs_out_of_memory_changes_no_answer(
    full: str, make_bench: Make, generate: Make, fill: Make, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """The context stays on the device, or in host memory. Its continuation is computed as far as it
    is missing, and a line of the log says why."""

    def no_room(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    prompt = list(range(1, 40))
    own = {"context": "more", "parent": "c"}
    expected, bench = make_bench(), make_bench()
    expected.run(fill("f", prompt, context="c"))
    bench.run(fill("f", prompt, context="c"))
    monkeypatch.setattr(HostBlocks, full, no_room)
    bench.core.retain("c", Retention.SWAP)
    while full == "restore" and bench.core.book.scheduler.tree.evict():
        bench.core.cache.fill(0)
    bench.core.retain("c", Retention.KEEP)
    found = bench.run(generate("g", [7, 8], **own))[0]
    assert found.tokens == expected.run(generate("g", [7, 8], **own))[0].tokens
    assert "CUDA out of memory" in caplog.text
