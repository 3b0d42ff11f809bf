"""Memory of layers with sliding windows is given back, and no text changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cpu.conftest import Bench, ByteDetokenizerOfTest
from tests.families import FAMILIES
from weftline_engine.api import Kind, Op, Retention, SamplingParams
from weftline_engine.bookkeeping.schedule.step_scheduler import SchedulerConfig
from weftline_engine.own.embedded.engine import Core
from weftline_engine.own.embedded.model.base import Model, empty_cache
from weftline_engine.own.embedded.model.decoders import load_decoder
from weftline_engine.own.embedded.released_blocks import release_blocks
from weftline_engine.own.embedded.window_sizes import WindowSizes, window_sizes

SLIDING = (0, 2)  # of three layers
LAYERS = ["conv", "full_attention", "conv"]
PLAIN = SchedulerConfig(blocks=40, max_running=2, step_tokens=32)


MODELS = {
    "Gemma 3": FAMILIES["Gemma 3"],
    "LFM2": {**FAMILIES["LFM2, convolutions"], "num_hidden_layers": 3, "layer_types": LAYERS},
}


@pytest.fixture(
    scope="module",
    params=itertools.product(MODELS, ["bfloat16", "float32"]),
    ids=lambda param: ", ".join(param),
)
def decoder(
    request: pytest.FixtureRequest,
    tiny_llama: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Model:
    """A model whose heads fill a page in each block, in C and in torch. Two of its layers have
    windows, or convolutions."""
    name, dtype = request.param
    folder = tmp_path_factory.mktemp("sliding")
    directory = tiny_llama(folder, **{**MODELS[name], "head_dim": 128})
    return load_decoder(directory, dtype, 16, folder / "kernels")


def answer(bench: Bench, name: str, tokens: list[int], parent: str | None = None) -> list[int]:
    op = Op(
        id=name,
        kind=Kind.GENERATE,
        context=name,
        parent=parent,
        tokens=tuple(tokens),
        sampling=SamplingParams(max_tokens=8, temperature=0, ignore_eos=True),
    )
    [outcome] = bench.run(op)
    assert outcome.finished is not None, outcome.failed
    return outcome.tokens


def conversation(bench: Bench) -> list[list[int]]:
    """A long prompt, its continuation, a branch in its middle, the same after a copy to host memory
    and back, and another prompt that needs the room."""
    prompt = torch.randint(2, 256, (330,), generator=torch.Generator().manual_seed(3)).tolist()
    found = [answer(bench, "long", prompt), answer(bench, "more", [7, 8, 9], "long")]
    found.append(answer(bench, "branch", [*prompt[:200], 5]))
    bench.core.retain("long", Retention.SWAP)
    found.append(answer(bench, "other", prompt[::-1][:250]))
    found.append(answer(bench, "again", [9, 9], "long"))
    return found


def test_released_windows_change_no_text(decoder: Model) -> None:
    """The same tokens as with all keys. In the sliding layers, the blocks in the middle of the long
    prompt hold nothing, and in the full layer they hold all keys."""
    expected = conversation(Bench(Core(decoder, PLAIN, ByteDetokenizerOfTest())))
    window = max(decoder.config.sliding.values())
    config = replace(PLAIN, blocks=60, window=window, window_blocks=18)
    bench = Bench(Core(decoder, config, ByteDetokenizerOfTest()))
    seen: list[bool] = []
    plan = bench.core.book.scheduler.plan

    def watched(now: float = 0.0) -> object:
        made = plan(now)
        tree, cache = bench.core.book.scheduler.tree, bench.core.cache
        assert tree.whole.count <= 18 and len(tree.whole.backed) <= 18
        gaps = [node.block for node in tree.nodes() if not node.whole]
        if gaps:
            seen.append(not cache[list(SLIDING)][:, :, :, gaps].any() and bool(cache[1].any()))
        return made

    bench.core.book.scheduler.plan = watched
    assert conversation(bench) == expected
    assert seen and all(seen)


def test_only_whole_pages_of_a_block_are_given_back() -> None:
    """Blocks 2, 3 and 5 of two layers are zeros, and nothing else has changed."""
    cache = empty_cache((3, 2, 2, 8, 2048), np.dtype(np.uint16))
    cache.fill(1)
    release_blocks(cache, (0, 2), [5, 2, 3])
    expected = np.ones_like(cache)
    for layer in (0, 2):
        expected[layer][:, :, [2, 3, 5]] = 0
    assert np.array_equal(cache, expected)


def test_what_windows_save_becomes_blocks(decoder: Model) -> None:
    """Two of three layers slide: a fifth of their memory is 40 % more blocks of the full layer.
    Where a head's keys are no whole pages, nothing is given back."""
    window = max(decoder.config.sliding.values())
    assert window_sizes(decoder.config, 100, 4096) == WindowSizes(140, window, 80)
    assert window_sizes(decoder.config, 100, 2048) == WindowSizes(100)


def test_a_cache_that_is_too_small_for_windows_is_refused() -> None:
    """The engine then keeps all keys."""
    with pytest.raises(ValueError, match="the KV pool has 10 blocks for sliding windows, and one"):
        replace(PLAIN, window=20, window_blocks=10)
