"""A model on a CUDA device: decode steps replay captured graphs, all other steps launch kernels.

A decode step of LLaMA-7B has some 400 kernels of a few microseconds. The host launches them more
slowly than the device runs them. A graph, captured once for each batch size, starts them together.
T = packed tokens, B = rows of a captured step, R = rows whose logits are wanted, V = vocabulary.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weftline_engine.embedded.model.base import StepInput, TorchModel
from weftline_engine.embedded.model.config import ModelConfig
from weftline_kernels.attention_triton import attend, has_wide, units
from weftline_kernels.device_tiles import Capacity, DeviceTiles
from weftline_kernels.kv_store import NO_SLOT
from weftline_kernels.staging import Staging
from weftline_kernels.tiles import MOST_SPLIT, TILES_PER_UNIT, Cutter, Tiles
from weftline_kernels.work_list import WorkList

# A capture gets a function that computes a step on fixed buffers. It returns a function that
# computes the step again on the buffers' new contents, and writes to the same logits.
Capture = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]

# Sharing a prefix costs partial results and their merge, but no launch. That takes less time than
# reading 8 blocks again: 2 MB of LLaMA-7B's cache, half a microsecond.
MIN_BLOCKS_SAVED = 8
_LEVELS = 8  # of the context tree; a step with more shared levels is launched, not replayed
# Partial results of a row; they take 1 MB for LLaMA-7B. A context is cut into 32 tiles at most, and
# a row that needs more slots lies below several shared ones.
_SLOTS_A_ROW = 64


class CudaGraphs:
    """`Capture` on a CUDA device. The graphs share their temporary memory, so they run in turn."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        compute()  # compiles the kernels, and lets cuBLAS allocate its workspace
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            logits_BV = compute()

        def replay() -> Tensor:
            graph.replay()
            return logits_BV

        return replay


class DeviceModel:
    """A `Model` that runs a decoder in torch, whose weights are on the device."""

    min_blocks_saved = MIN_BLOCKS_SAVED

    def __init__(self, network: TorchModel, *, max_running: int, capture: Capture) -> None:
        self.network = network
        self.config: ModelConfig = network.config
        self.device = network.device
        self._capture = capture
        self._sizes = sizes(max_running)
        self._captured: dict[int, CapturedStep] = {}
        self._cache: Tensor | None = None

    def new_cache(self, blocks: int, block_size: int) -> Tensor:
        """An empty KV cache (L, 2, K, P, S, H). `warm` captures the decode steps over it."""
        return self.network.new_cache(blocks, block_size)

    @torch.inference_mode()
    def warm(self, cache: Tensor) -> None:
        """Capture the decode steps of every size over this cache, the largest first, so that the
        smaller ones reuse its temporary memory."""
        self._cache, self._captured = cache, {}
        gc.collect()  # a tensor of a cycle that is freed during a capture would break it
        for rows in reversed(self._sizes):
            self._captured[rows] = CapturedStep(self.network, rows, cache, self._capture)

    def forward(self, step: StepInput, cache: Tensor) -> Tensor:
        """`Model.forward`; the logits are valid until the next call."""
        block_size = cache.shape[4]
        work = step.work
        cutter = _cutter(self.network, block_size)
        split = cutter.split_length(work)
        tiles = cutter.cut(work, split)
        rows = len(step.tokens_T)
        # If each sequence computes one token, logits are wanted for all rows, in their order.
        if rows == len(step.rows_R) <= self._sizes[-1] and cache is self._cache:
            captured = self._captured[min(size for size in self._sizes if size >= rows)]
            room = captured.tiles.capacity
            longest = max(item.length for item in work.items)
            # Longer tiles balance the device less well, but a launched step takes far longer.
            while not room.holds(tiles) and split < longest:
                split *= 2
                tiles = cutter.cut(work, split)
            if room.holds(tiles):
                captured.load(step, tiles)
                return captured.replay()[:rows]
        return self._launch(step, tiles, cache)

    def _launch(self, step: StepInput, tiles: Tiles, cache: Tensor) -> Tensor:
        parts = [step.tokens_T, step.positions_T, step.slots_T, step.rows_R]
        counts = [len(part) for part in parts]
        staging = Staging(sum(counts), torch.int64, self.device)
        offsets = np.cumsum([0, *counts[:-1]]).tolist()
        values = [part.numpy() for part in parts]
        staging.send(zip(offsets, values, strict=True), sum(counts))
        tokens_T, positions_T, slots_T, rows_R = torch.split(staging.tensor, counts)
        on_device = StepInput(tokens_T, positions_T, slots_T, rows_R, step.work)
        held = DeviceTiles.of(tiles, self.device)
        attention = partial(_attend, held, self.network.scale, tiles.wide > 0)
        return self.network.compute(on_device, attention, cache)


class CapturedStep:
    """A captured step of one token for up to `rows` sequences: its buffers and its graph."""

    def __init__(self, network: TorchModel, rows: int, cache: Tensor, capture: Capture) -> None:
        config, device = network.config, network.device
        blocks, block_size = cache.shape[3], cache.shape[4]
        self.tiles = DeviceTiles(
            capacity(config, rows, blocks, block_size, units(device)),
            *_cutter(network, block_size).rows,
            device,
        )
        self._rows = rows
        self._staging = Staging(3 * rows, torch.int64, device)
        tokens_B, positions_B, slots_B = self._staging.tensor.view(3, rows)
        nothing = WorkList((), rows, False)
        every_B = torch.arange(rows, device=device)
        step = StepInput(tokens_B, positions_B, slots_B, every_B, nothing)
        self._send(*(np.zeros(0, np.int64),) * 3)
        # A graph reads the addresses of the tensors that it was captured with, and keeps none of
        # the tensors alive. These functions do: the step's tensors, the tiles and the cache.
        narrow_rows, wide_rows = _cutter(network, block_size).rows
        can_be_wide = (
            narrow_rows < wide_rows and rows * config.heads > narrow_rows * config.kv_heads
        )
        self._computes = [
            partial(network.compute, step, partial(_attend, self.tiles, network.scale, wide), cache)
            for wide in ((False, True) if can_be_wide else (False,))
        ]
        self._replays = [capture(compute) for compute in self._computes]

    def replay(self) -> Tensor:
        """Compute the loaded step: logits (B, V), in memory that the next replay overwrites."""
        return self._replays[self.tiles.wide > 0]()

    def load(self, step: StepInput, tiles: Tiles) -> None:
        """Load this step, of at most `rows` tokens, for the next replay."""
        self._send(step.tokens_T.numpy(), step.positions_T.numpy(), step.slots_T.numpy())
        self.tiles.load(tiles)

    def _send(self, *parts_T: npt.NDArray[np.int64]) -> None:
        """Copy a step to the buffers. Rows after its tokens are token 0, without slot or tile."""
        packed = np.zeros((3, self._rows), np.int64)
        packed[2] = NO_SLOT
        for row, values_T in zip(packed, parts_T, strict=True):
            row[: len(values_T)] = values_T
        self._staging.send([(0, packed.ravel())], packed.size)


def _cutter(network: TorchModel, block_size: int) -> Cutter:
    config, device = network.config, network.device
    group = config.heads // config.kv_heads
    wide = has_wide(network.dtype, config.head_size)
    return Cutter(group, config.kv_heads, units(device), block_size, wide)


def _attend(
    tiles: DeviceTiles,
    scale: float,
    wide: bool,
    q_RNH: Tensor,
    keys_KPSH: Tensor,
    values_KPSH: Tensor,
) -> Tensor:
    return attend(tiles, q_RNH, keys_KPSH, values_KPSH, scale, wide=wide)


def sizes(max_running: int) -> tuple[int, ...]:
    """Rows of the captured steps: powers of two, and the largest batch."""
    powers = [1 << i for i in range(max_running.bit_length()) if 1 << i < max_running]
    return (*powers, max_running)


def capacity(
    config: ModelConfig, rows: int, blocks: int, block_size: int, multiprocessors: int
) -> Capacity:
    """The capacity that nearly every decode step of `rows` rows needs. A step that needs more is
    cut into longer tiles. A step with more than _LEVELS shared levels is launched."""
    context = min(config.context_limit, blocks * block_size)
    tokens = rows * context
    balanced = TILES_PER_UNIT * multiprocessors // config.kv_heads + 1
    return Capacity(
        # Items are cut into tiles that balance the device, of at most MOST_SPLIT tokens.
        tiles=4 * (balanced + 2 * rows) + tokens // MOST_SPLIT,
        blocks=tokens // block_size + rows,
        queries=_LEVELS * rows,
        rows=rows,
        slots=_SLOTS_A_ROW * rows,
    )
