"""Times the attention libraries of this machine: a layer of each kind of step, and decode steps of
the engine with each of them.

The blocks of the engine have 16 tokens. A layer is timed with blocks of 256, too, because torch's
FlashAttention 2 reads no smaller ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bench.gpu import llama, steps
from weftline_engine.embedded.model.base import TorchModel
from weftline_engine.embedded.model.device_model import Libraries, shape_of
from weftline_kernels.attention_choice import OURS, Trial, TrialSize, installed, measure
from weftline_kernels.libraries import AttentionLibrary
from weftline_kernels.step_attention import StepKind

BLOCKS = (llama.BLOCK, 256)
# Streams, their common tokens, and the tokens that each has alone.
STEPS = ((32, 0, 500), (32, 2048, 500))
TINY = TrialSize(streams=3, tokens=20, common=32, chunk=20)


def rows(device: torch.device, dry: bool) -> Iterator[dict[str, object]]:
    """For each model a row for each size of blocks, then one for each engine. The last model of
    `steps` has the most to read, and comes first."""
    for name, config in reversed(steps.shapes(dry).items()):
        network = llama.load(config, device)
        trials = {block: _trial(network, block, dry) for block in BLOCKS}
        for block, trial in trials.items():
            yield {"shape": name, "block": block, **_told(trial)}
        usable = [one for one in installed() if one not in trials[llama.BLOCK].refused]
        for streams, common, own in ((2, 6, 3),) if dry else STEPS:
            for library in (None, *usable):
                seconds = _engine(network, library, (streams, common, own), dry)
                yield {
                    "shape": name,
                    "library": library.name if library else OURS,
                    "streams": streams,
                    "common": common,
                    "engine_ms": seconds * 1e3,
                }
        del network
        llama.release(device)


def _trial(network: TorchModel, block: int, dry: bool) -> Trial:
    """What an engine measures when it starts, with blocks of this size."""
    capture, size = llama.captures(network.device), TINY if dry else TrialSize()
    shape = shape_of(network, block)
    return measure(shape, network.device, capture, installed(), size=size)


def _told(trial: Trial) -> dict[str, object]:
    """The microseconds of a layer by kind of step, and why a library was left out."""
    seconds = {
        f"{kind}, {name}, us": value * 1e6
        for kind, each in trial.seconds.items()
        for name, value in each.items()
    }
    return seconds | {f"without {one.name}": why for one, why in trial.refused.items()}


def _engine(
    network: TorchModel, library: AttentionLibrary | None, step: tuple[int, int, int], dry: bool
) -> float:
    """The seconds of an engine's decode step if this library computes all that it can."""
    libraries: Libraries = {} if library is None else dict.fromkeys(StepKind, library)
    streams, common, own = step
    seconds, _ = llama.engine_seconds(
        network, streams, common, own, 2 if dry else 40, libraries=libraries
    )
    return seconds
