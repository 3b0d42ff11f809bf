"""The engine on a pretended device, which refuses what a GPU would refuse or wait for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from tests import pretend
from tests.engines import llama, mixed, on_cpu, on_device, requests, run
from tests.pretended_engine import install
from tests.torch_kernels import KERNELS, StandIn
from weftline_engine.api import Failed, Op, Part, Retention
from weftline_engine.own.embedded.engine import Core
from weftline_engine.own.embedded.model.config import ModelConfig
from weftline_engine.own.embedded.sample import token_choice
from weftline_engine.own.embedded.torch_device import Readback
from weftline_kernels.jit import INTERPRETED

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1 from the start"),
    # Rows that pad a captured step are computed from what their memory holds.
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[pretend.Pretending]:
    """A pretended device with its own memory. Its log has the engine's launches and reads."""
    mode = install(monkeypatch, {key: getattr(*key) for key in KERNELS})
    with mode:
        yield mode


@pytest.mark.parametrize(
    "waits",
    [
        lambda x: x[0].item(),
        lambda x: bool(x[0] > 0),
        lambda x: float(x[0]),
        lambda x: x.cpu(),
        lambda x: x.to("cpu"),
        lambda x: x.numpy(),
        lambda x: x.tolist(),
        lambda x: x.nonzero(),
        lambda x: torch.where(x > 0),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.__setitem__(x > 0, 0.0),
        lambda x: x.index_put((x > 0,), x[0]),
        lambda x: torch._index_put_impl_(x, (x > 0,), x[0]),
        lambda x: torch.equal(x, x),
        lambda x: torch.unique(x),
        lambda x: torch.unique(x, dim=0),
        lambda x: torch.bincount(x.long()),
        lambda x: x.repeat_interleave(x.long()),
        lambda x: torch.zeros(3).copy_(x),
        lambda x: torch.zeros(3).copy_(x, non_blocking=True),
        lambda x: x + torch.ones(3),
        lambda x: torch.ones(3).to(x.device).add_(torch.ones(3)),
    ],
)
def test_the_device_refuses_what_waits_or_mixes(
    waits: Callable[[Tensor], object], device: pretend.Pretending
) -> None:
    """Reads of values, sizes that depend on values, copies that wait, and two memories at once."""
    x = torch.ones(3).to(pretend.DEVICE, non_blocking=True)
    assert isinstance(x * 2, pretend.OnDevice)
    with pytest.raises(AssertionError, match=r"waits|both memories|numpy"):
        waits(x)


def test_a_kernel_takes_tensors_of_the_device_only(device: pretend.Pretending) -> None:
    """A host's tensor has an address that means nothing there. Numbers may go anywhere."""
    seen: list[object] = []
    launched = pretend.kernel(StandIn(lambda *args: seen.extend(args)), device)
    x = torch.ones(3).to(pretend.DEVICE)
    launched[(1,)](x, 2.5)
    assert isinstance(x, pretend.OnDevice) and seen[0] is x.inner and seen[1:] == [2.5]
    with pytest.raises(AssertionError, match="a kernel gets a host's tensor"):
        launched[(1,)](x, torch.ones(3))


def test_a_fetched_value_is_there_when_the_host_has_waited(device: pretend.Pretending) -> None:
    """Until then there is nonsense, as on a GPU that has not come so far. What the device reads
    from host memory it has written there before."""
    x = torch.arange(3).to(pretend.DEVICE)
    here = torch.empty(3, dtype=torch.int64, pin_memory=True)
    here.copy_(x, non_blocking=True)
    x.add_(1)
    assert here.tolist() == [pretend.NONSENSE] * 3
    fetched = Readback([here.to(pretend.DEVICE), x], pretend.DEVICE)
    x.add_(1)
    assert [one.tolist() for one in fetched.values()] == [[0, 1, 2], [1, 2, 3]]
    assert device.log == ["read"]


def test_a_captured_step_neither_allocates_nor_copies(device: pretend.Pretending) -> None:
    """A replay repeats the captured operations on the memory of the capture."""
    x, y = (torch.ones(3).to(pretend.DEVICE) for _ in range(2))
    replay = device.capture(lambda: (x + y).mul_(2))
    with device.still():
        x.add_(1)
        logits = replay()
    assert isinstance(logits, pretend.OnDevice) and logits.inner.tolist() == [6.0] * 3
    with device.still(), pytest.raises(AssertionError, match="allocates 12 bytes"):
        x + y
    with pytest.raises(AssertionError, match="copies in a capture"):
        device.capture(lambda: x + torch.ones(3).to(pretend.DEVICE))


@pytest.mark.parametrize(
    ("config", "overlap"),
    [
        pytest.param(llama(layers=1), True, id="Llama"),
        pytest.param(llama(layers=1), False, id="Llama, one by one"),
        pytest.param(mixed(), True, id="every difference of a family"),
    ],
)
def test_every_way_to_sample_is_as_on_the_cpu(
    config: ModelConfig, overlap: bool, device: pretend.Pretending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six requests on four places in a pool that preempts: prompts in chunks, a shared prefix,
    captured steps. With four sorted candidates some tokens are drawn again after the next launch.
    """
    ops = requests(tokens=3)
    with _away():
        expected = run(on_cpu(config), ops)
    monkeypatch.setattr(token_choice, "_CANDIDATES", 4)
    again: list[int] = []
    settle = token_choice.Draws.settle

    def settled(draws: token_choice.Draws, tokens_R: Any) -> Any:
        again.append(int((tokens_R == token_choice.UNSURE).sum()))
        return settle(draws, tokens_R)

    monkeypatch.setattr(token_choice.Draws, "settle", settled)
    engine = on_device(config, device.capture, pretend.DEVICE, blocks=34, overlap=overlap)
    assert isinstance(engine.cache, pretend.OnDevice)
    assert run(engine, ops) == expected
    assert sum(again) > 0


def test_a_step_is_launched_before_the_tokens_of_the_last_one_are_read(
    device: pretend.Pretending,
) -> None:
    """The host waits once a step, after the next launch. One by one it waits for each step before
    it plans the next one. The longer prompt comes in two chunks."""
    ops = requests(tokens=4)[4:]
    logs, tokens = [], []
    for overlap in (True, False):
        engine = on_device(
            llama(layers=1), device.capture, pretend.DEVICE, overlap=overlap, max_running=2
        )
        device.log.clear()
        tokens.append(run(engine, ops))
        logs.append(list(device.log))
    assert tokens[0] == tokens[1]
    steps = len(logs[1]) // 2
    assert logs[1] == ["launch", "read"] * steps
    assert logs[0] == ["launch", *["launch", "read"] * (steps - 1), "read"]


def test_ends_that_are_found_late_are_as_on_the_cpu(device: pretend.Pretending) -> None:
    """The model's end, stop strings and calls of tools end outputs in the middle of others. The
    cache holds what it holds one by one."""
    plain = requests(tokens=8)
    with _away():
        said = run(on_cpu(llama(layers=1)), plain)
    config = replace(llama(layers=1), eos=(said[0][2],))
    ways: list[dict[str, Any]] = [
        {"ignore_eos": False},
        {"stop": (str(said[1][3]),)},
        {"pause_on": (str(said[2][4]),), "stop": (str(said[2][4]),)},
        {"stop": (f"{said[3][1]}",), "min_tokens": 3},
        {},
        {"ignore_eos": False},
    ]
    ops = [_changed(op, **way) for op, way in zip(plain, ways, strict=True)]
    with _away():
        one_by_one = on_cpu(config)
        expected = run(one_by_one, ops)
    engine = on_device(config, device.capture, pretend.DEVICE)
    assert run(engine, ops) == expected
    assert [len(tokens) for tokens in expected] != [8] * 6
    contexts = engine.book.contexts.named
    for name, context in one_by_one.book.contexts.named.items():
        assert (contexts[name].tokens, contexts[name].computed) == (
            context.tokens,
            context.computed,
        )


def test_constraints_are_followed_while_the_next_step_runs(device: pretend.Pretending) -> None:
    """Outputs under two grammars run beside free ones. A mask needs the last token, so the host
    reads that first, and draws while the device computes the step."""
    grammars_of = pytest.importorskip("weftline_engine.own.constraints.grammars").TokenGrammars
    config = replace(llama(layers=1), vocabulary=256)
    marks = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={mark: at for at, mark in enumerate(marks)}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = [{"regex": "[a-f]{2}-[0-9]{2}"}, {"choice": ["north", "south"]}]
    ways = [{"constraint": json.dumps(text), "ignore_eos": False} for text in texts]
    plain = requests(tokens=7)[:4]
    ops = [_changed(op, **(ways[i] if i < 2 else {})) for i, op in enumerate(plain)]

    def made(make: Callable[..., Core], *where: Any) -> Core:
        return make(config, *where, grammars=grammars_of(tokenizer.to_str(), 256, [0]))

    with _away():
        expected = run(made(on_cpu), ops)
    assert run(made(on_device, device.capture, pretend.DEVICE), ops) == expected
    said = ["".join(marks[token] for token in tokens if token) for tokens in expected[:2]]
    assert said[0][2] == "-" and said[1] in ("north", "south")


def test_a_context_is_swapped_out_and_brought_back_exactly(device: pretend.Pretending) -> None:
    """Also between a launch and its read. Its continuation is that of a context that stayed."""
    ops = requests(tokens=3)
    engine = on_device(llama(layers=1), device.capture, pretend.DEVICE)
    run(engine, ops)
    more = [replace(one, id="more", context="more", tokens=(7, 8)) for one in ops[4:5]]
    more[0] = replace(more[0], parent="op0.context")
    with _away():
        stayed = on_cpu(llama(layers=1))
        run(stayed, ops)
        expected = run(stayed, more)
    context = engine.book.contexts.named["op0.context"]
    before = _contents(engine, context.held)
    engine.submit(replace(ops[5], id="beside", context="beside"))
    engine.step()
    engine.retain(context.id, Retention.SWAP)
    assert type(context.saved) is torch.Tensor
    while engine.book.scheduler.tree.evict():
        pass
    engine.retain(context.id, Retention.KEEP)
    assert torch.equal(_contents(engine, context.held), before)
    while engine.busy:
        engine.step()
    assert run(engine, more) == expected


def test_a_step_without_memory_is_halved(device: pretend.Pretending) -> None:
    """The prompts of three requests fit one by one. One prompt never fits, and fails alone. Behind
    it the engine goes on, and a new engine on the same device gives the same."""
    config = llama(layers=1)
    ops = [op for i, op in enumerate(requests(tokens=3, prefix=9)) if i != 4]
    big = replace(requests(tokens=3)[4], tokens=tuple(range(1, 60)), id="big", context="big")
    with _away():
        expected = run(on_cpu(config), ops)
    engine = on_device(config, device.capture, pretend.DEVICE)
    device.log.clear()
    device.most_bytes = 4 * 40 * config.mlp * 2  # the MLP of 40 rows
    for op in (*ops, big):
        engine.submit(op)
    found, failed = _outcome(engine)
    assert failed == {"big": "EngineFailed"}
    assert [found[op.id] for op in ops] == expected
    assert device.log.count("launch") > device.log.count("read")
    device.most_bytes = None
    another = on_device(config, device.capture, pretend.DEVICE)
    assert run(another, ops[:2]) == expected[:2]
    alike = replace(ops[0], id="again", context="again")
    assert run(engine, [alike]) == expected[:1]


def test_a_row_that_is_not_finite_fails_alone(device: pretend.Pretending) -> None:
    """Its step's successor is launched already, with token 0 in its place. Both are wiped."""
    ops = requests(tokens=4)[:3]
    with _away():
        expected = run(on_cpu(llama(layers=1)), ops)
    engine = on_device(llama(layers=1), device.capture, pretend.DEVICE)
    steps = iter(range(100))

    def probe(logits: Tensor, names: Sequence[str]) -> None:
        if next(steps) == 2:
            logits[list(names).index("op1")].fill_(float("nan"))

    engine.probe = probe
    for op in ops:
        engine.submit(op)
    found, failed = _outcome(engine)
    assert failed == {"op1": "EngineFailed"}
    assert [found["op0"], found["op2"]] == [expected[0], expected[2]]
    assert found["op1"] == expected[1][: len(found["op1"])]
    engine.probe = None
    assert run(engine, [replace(ops[1], id="again", context="again")]) == [expected[1]]


def _changed(op: Op, **way: Any) -> Op:
    assert op.sampling is not None
    return replace(op, sampling=replace(op.sampling, **way))


def _away() -> Any:
    """On the CPU, without the pretended device."""
    return _disable_current_modes()


def _contents(engine: Core, held: Sequence[Any]) -> Tensor:
    assert isinstance(engine.cache, pretend.OnDevice)
    inner = engine.cache.inner
    with _away():
        return inner[:, :, :, [node.block for node in held]].clone()


def _outcome(engine: Core) -> tuple[dict[str, list[int]], dict[str, str]]:
    """The tokens of all ops, and the errors of those that failed."""
    found: dict[str, list[int]] = {}
    failed: dict[str, str] = {}
    while engine.busy:
        for event in engine.step():
            if isinstance(event, Failed):
                failed[event.op] = event.error
            elif isinstance(event, Part):
                found.setdefault(event.op, []).extend(event.tokens)
    return found, failed
