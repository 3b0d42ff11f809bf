"""The engine on a CUDA device decodes the tokens that it decodes on the CPU, also from
host memory.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.engines import llama, mixed, on_cpu, on_device, requests, run
from weftline_engine.api import ContextMoved, Kind, Op, Retention
from weftline_engine.own.embedded.model.config import ModelConfig
from weftline_engine.own.embedded.model.device_model import CudaGraphs

pytestmark = pytest.mark.gpu


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.mark.parametrize(
    "config",
    [llama(width=64), llama(width=128, kv_heads=4), llama(width=12, kv_heads=1), mixed()],
    ids=["grouped heads", "wide heads", "one KV head", "mixed layers"],
)
@pytest.mark.parametrize("blocks", [160, 34], ids=["roomy", "with preemption"])
def test_float32_gives_the_tokens_of_the_cpu(
    config: ModelConfig, blocks: int, device: torch.device
) -> None:
    """Six requests on four places are sampled in every way, behind a prefix that ends inside a
    block.
    """
    ops = requests(tokens=12)
    expected = run(on_cpu(config, blocks=160), ops)
    assert run(on_device(config, CudaGraphs(), device, blocks=blocks), ops) == expected


def test_bfloat16_is_as_near_as_its_rounding(device: torch.device) -> None:
    """Logits of each request's first token, in units of their spread, against float32."""
    seen: list[list[Tensor]] = [[], []]
    engines = (
        on_cpu(llama(width=64)),
        on_device(llama(width=64), CudaGraphs(), device, torch.bfloat16),
    )
    for engine, found in zip(engines, seen, strict=True):
        engine.probe = lambda logits, ops, found=found: found.append(
            torch.as_tensor(logits).double().cpu()
        )
        run(engine, requests(tokens=1))
    expected, found = (torch.cat(side) for side in seen)
    assert ((found - expected).abs().mean() / expected.std()) < 0.03


def test_a_context_in_host_memory_comes_back_bit_by_bit(device: torch.device) -> None:
    """Its blocks are wiped while it is in host memory."""
    engine = on_device(llama(width=64), CudaGraphs(), device, torch.bfloat16)
    run(engine, [Op(id="f", kind=Kind.FILL, context="c", tokens=tuple(range(1, 60)))])
    context = engine.book.contexts.named["c"]

    def contents() -> Tensor:
        return engine.cache[:, :, :, [node.block for node in context.held]].cpu()

    before = contents()
    engine.retain("c", Retention.SWAP)
    moved = [event for event in engine.step() if isinstance(event, ContextMoved)]
    assert context.held == []
    assert isinstance(context.saved, Tensor) and context.saved.is_pinned()
    while engine.book.scheduler.tree.evict():
        engine.cache.zero_()
    engine.retain("c", Retention.KEEP)
    moved += [event for event in engine.step() if isinstance(event, ContextMoved)]
    assert [event.residency for event in moved] == ["host", "resident"]
    assert torch.equal(contents(), before)


class Counted(CudaGraphs):
    """Counts the replays of all graphs."""

    replays = 0

    def __call__(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        replay = super().__call__(compute)

        def counted() -> Tensor:
            self.replays += 1
            return replay()

        return counted


def test_decode_steps_are_replayed(device: torch.device) -> None:
    """Four sequences of twelve tokens: every step without a prompt's chunk is replayed."""
    capture = Counted()
    run(on_device(llama(width=64), capture, device, torch.bfloat16), requests(tokens=12)[:4])
    assert 11 <= capture.replays <= 14
