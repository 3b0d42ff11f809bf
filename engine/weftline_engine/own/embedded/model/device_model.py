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

from weftline_engine.own.embedded.model.base import Late, StepInput
from weftline_engine.own.embedded.model.config import ModelConfig
from weftline_engine.own.embedded.model.torch_model import TorchModel
from weftline_engine.own.embedded.torch_device import TorchDevice
from weftline_kernels.attention_triton import units
from weftline_kernels.device_tiles import Capacity
from weftline_kernels.kv_store import NO_SLOT
from weftline_kernels.staging import Staging
from weftline_kernels.step_attention import AttentionShape, StepAttention
from weftline_kernels.tiles import MOST_SPLIT, TILES_PER_UNIT
from weftline_kernels.work_list import WorkList

# A function that computes on fixed buffers becomes one that computes again, as in a CUDA graph. It
# keeps the addresses of tensors, and none of the tensors alive: who captures keeps the function.
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
    overlaps = True

    def __init__(self, network: TorchModel, *, max_running: int, capture: Capture) -> None:
        self.network = network
        self.config: ModelConfig = network.config
        self.precision = str(network.dtype).removeprefix("torch.")
        self.device = TorchDevice(network.device)
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
        most = self._sizes[-1]
        for rows in reversed(self._sizes):
            self._captured[rows] = CapturedStep(self.network, rows, cache, self._capture, most=most)

    def forward(self, step: StepInput, cache: Tensor) -> Tensor:
        """`Model.forward`; the logits are valid until the next call."""
        rows = len(step.tokens_T)
        # If each sequence computes one token, logits are wanted for all rows, in their order.
        if rows == len(step.rows_R) <= self._sizes[-1] and cache is self._cache:
            captured = self._captured[min(size for size in self._sizes if size >= rows)]
            if captured.load(step):
                return captured.replay()[:rows]
        return self._launch(step, cache)

    def _launch(self, step: StepInput, cache: Tensor) -> Tensor:
        parts = (step.tokens_T, step.positions_T, step.slots_T, step.rows_R)
        values = list(parts)
        if step.late is not None:
            values += [step.late.rows_L, step.late.from_L]
        counts = [len(part) for part in values]
        staging = Staging(sum(counts), torch.int64, self.network.device)
        offsets = np.cumsum([0, *counts[:-1]]).tolist()
        staging.send(zip(offsets, values, strict=True), sum(counts))
        tokens_T, positions_T, slots_T, rows_R, *late = torch.split(staging.tensor, counts)
        if step.late is not None:
            rows_L, from_L = late
            tokens_T.index_copy_(0, rows_L, step.late.tokens_R[from_L])
        on_device = StepInput(tokens_T, positions_T, slots_T, rows_R, step.work)
        attention = StepAttention(shape_of(self.network, cache.shape[4]), self.network.device)
        attention.load(step.work)
        return self.network.compute(on_device, attention.function(wide=attention.wide), cache)


class CapturedStep:
    """A captured step of one token for up to `rows` sequences: its buffers and its graphs. The step
    before may have sampled tokens for up to `most` sequences."""

    def __init__(
        self,
        network: TorchModel,
        rows: int,
        cache: Tensor,
        capture: Capture,
        *,
        most: int = 0,
    ) -> None:
        device = network.device
        self._rows = rows
        self._staging = Staging(4 * rows + most, torch.int64, device)
        sent, self._last_R = self._staging.tensor[: 4 * rows], self._staging.tensor[4 * rows :]
        positions_B, slots_B, from_B, _ = sent.view(4, rows)
        # The graph takes a row's token from those that the host sends, or from those of the last
        # step, which follow them.
        source = self._staging.tensor[3 * rows :]
        nothing = WorkList((), rows)
        every_B = torch.arange(rows, device=device)
        step = StepInput(torch.zeros_like(every_B), positions_B, slots_B, every_B, nothing)
        self._send(*(np.zeros(0, np.int64),) * 3)
        blocks, block_size = cache.shape[3], cache.shape[4]
        room = capacity(network.config, rows, blocks, block_size, units(device))
        self._attention = StepAttention(shape_of(network, block_size), device, room)
        # A graph reads the addresses of the tensors that it was captured with, and keeps none of
        # the tensors alive. These functions do: the step's tensors, attention's and the cache.
        self._computes: dict[bool, Callable[[], Tensor]] = {}  # by whether tiles are wide
        for wide in self._attention.widths():
            attend = self._attention.function(wide=wide)
            compute = partial(network.compute, step, attend, cache)
            self._computes[wide] = partial(_compute, (source, from_B), step, compute)
        self._replays = {wide: capture(compute) for wide, compute in self._computes.items()}

    def replay(self) -> Tensor:
        """Compute the loaded step: logits (B, V), in memory that the next replay overwrites."""
        return self._replays[self._attention.wide]()

    def load(self, step: StepInput) -> bool:
        """Load this step, of at most `rows` tokens, for the next replay. False if attention has no
        room for it."""
        if not self._attention.load(step.work):
            return False
        parts = (step.positions_T, step.slots_T, step.tokens_T)
        self._send(*parts, late=step.late)
        return True

    def _send(self, *parts_T: npt.NDArray[np.int64], late: Late | None = None) -> None:
        """Copy positions, slots and tokens of a step to the buffers. Rows after its tokens are
        token 0, without slot or tile."""
        packed = np.zeros((4, self._rows), np.int64)
        packed[1] = NO_SLOT
        packed[2] = np.arange(self._rows)
        for row, values_T in zip((0, 1, 3), parts_T, strict=True):
            packed[row, : len(values_T)] = values_T
        if late is not None:
            packed[2, late.rows_L] = self._rows + late.from_L
            self._last_R[: len(late.tokens_R)].copy_(late.tokens_R)
        self._staging.send([(0, packed.ravel())], packed.size)


def _compute(
    taken: tuple[Tensor, Tensor], step: StepInput, compute: Callable[[], Tensor]
) -> Tensor:
    """Compute a step, after its tokens were taken from a tensor by their places in it."""
    torch.index_select(taken[0], 0, taken[1], out=step.tokens_T)
    return compute()


def shape_of(network: TorchModel, block_size: int) -> AttentionShape:
    """What attention of a model is like."""
    config = network.config
    return AttentionShape(
        config.heads,
        config.kv_heads,
        config.head_size,
        block_size,
        network.dtype,
        network.scale,
    )


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
