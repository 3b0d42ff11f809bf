"""Attention by a work list in Triton: one kernel serves tree decode and prefill.

The first kernel computes every tile for every KV head. Each program takes every n-th tile, where n
is the size of the grid. A tile's normalised result goes to a slot with its log-sum-exp (base 2), or
directly to the output if its query has only one tile. The second kernel merges the slots of a query
in their order, so a step gives the same bits each time. Letters of the shapes:
R = packed query rows, N = query heads, K = KV heads, G = query heads per KV head, H = head size,
B = blocks of the pool, S = tokens per block, M = rows of a tile, L = tokens of one product, U =
slots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from weftline_kernels.device_tiles import DeviceTiles
from weftline_kernels.jit import INTERPRETED, kernel, power_of_two, tl
from weftline_kernels.tiles import PROGRAMS_PER_UNIT, Cutter
from weftline_kernels.work_list import WorkList


@dataclass(frozen=True, slots=True)
class Launch:
    """How the attention kernel is launched: tokens of one product, warps and stages of a program,
    and how many programs a multiprocessor runs."""

    tokens: int
    warps: int
    stages: int
    programs: int


def launch_of(dtype: torch.dtype, rows: int, width: int, sm: int, *, wide: bool) -> Launch:
    """The launch of a kernel whose narrow tiles have `rows` rows, with wide tiles or without.

    None spills registers in 16 bits up to 128 channels, compiled for sm_80 to sm_120, and all fit
    the 99 KB of shared memory of sm_89 and sm_120: `make gpu-compile` holds that. `sm` is the
    compute capability, 90 for an H100 or H200.
    """
    if dtype.itemsize > 2:
        return Launch(16, 8, 2, PROGRAMS_PER_UNIT) if wide or rows > 16 else Launch(32, 4, 2, 4)
    if wide and sm == 100:
        return Launch(64, 8, 3, PROGRAMS_PER_UNIT)
    if wide:
        # With 64 tokens a program takes 255 registers and 80 KB, so a multiprocessor runs two. 32
        # tokens took 57 us on an H200 where 64 took 48. Where a head is padded, 64 tokens spill.
        is_padded = width != power_of_two(width)
        return Launch(64 if sm in (80, 90) and not is_padded else 32, 4, 3, PROGRAMS_PER_UNIT)
    # A kernel without wide tiles needs fewer registers: 256 streams of 500 tokens on 8 KV heads of
    # 4 took 135 us on an H200, and 153 us with the kernel that has both.
    if rows == 16 and width <= 128:
        return Launch(64, 2, 3, 2 * PROGRAMS_PER_UNIT)
    return Launch(32, 4, 3, 2 * PROGRAMS_PER_UNIT)


def has_wide(dtype: torch.dtype, width: int) -> bool:
    """Whether steps are cut into wide tiles, too. They are for tensor cores. In float32, and with
    more than 128 channels, a program of 64 rows spills its registers."""
    return dtype.itemsize == 2 and width <= 128


MERGED = 16  # partial results that the merge loads at a time


class TritonAttention:
    """`Attention` of a step on a device. The work list is cut and copied once, for all layers."""

    def __init__(self, work: WorkList, scale: float, *, split: int | None = None) -> None:
        self.work = work
        self.scale = scale
        self.split = split
        self.tiles: DeviceTiles | None = None

    def __call__(self, q_RNH: Tensor, keys_KBSH: Tensor, values_KBSH: Tensor) -> Tensor:
        """Return the attention of one layer, (R, N, H), in the dtype of `q_RNH`."""
        if self.tiles is None:
            kv_heads, _, block_size, _ = keys_KBSH.shape
            group = q_RNH.shape[1] // kv_heads
            wide = has_wide(q_RNH.dtype, q_RNH.shape[2])
            cutter = Cutter(group, kv_heads, units(q_RNH.device), block_size, wide)
            self.tiles = DeviceTiles.of(cutter.cut(self.work, self.split), q_RNH.device)
        is_wide = self.tiles.wide > 0
        return attend(self.tiles, q_RNH, keys_KBSH, values_KBSH, self.scale, wide=is_wide)


def units(device: torch.device) -> int:
    """Return the multiprocessors of a CUDA device. 1 elsewhere: the interpreter is sequential."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def compute_capability(device: torch.device) -> int:
    """90 for compute capability 9.0, and elsewhere than on a CUDA device."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def attend(
    tiles: DeviceTiles,
    q_RNH: Tensor,
    keys_KBSH: Tensor,
    values_KBSH: Tensor,
    scale: float,
    *,
    wide: bool = True,
) -> Tensor:
    """Return the attention of one layer, o_RNH, by tiles on the device, in the queries' dtype.

    `wide` is False if no tile is wide, now and in every later step of a captured graph. The grids
    depend only on the capacity of `tiles`, and the kernels read all counts on the device. So a
    captured CUDA graph serves every later step that fits. Rows without an item stay unset. Raises
    ValueError if the blocks of a head are not contiguous.
    """
    _check_layout(q_RNH, keys_KBSH, values_KBSH)
    rows, heads, width = q_RNH.shape
    kv_heads, _, block_size, _ = keys_KBSH.shape
    o_RNH = torch.empty(q_RNH.shape, dtype=q_RNH.dtype, device=q_RNH.device)
    slots = max(1, tiles.capacity.slots)
    part_UNH = torch.empty(slots, heads, width, dtype=torch.float32, device=q_RNH.device)
    lse_UN = torch.empty(slots, heads, dtype=torch.float32, device=q_RNH.device)
    sm = compute_capability(q_RNH.device)
    launch = launch_of(q_RNH.dtype, tiles.narrow_rows, width, sm, wide=wide)
    programs = launch.programs * units(q_RNH.device)
    block_h = max(16, power_of_two(width))
    _attend[(max(1, min(programs, tiles.capacity.tiles * kv_heads)),)](
        q_RNH,
        keys_KBSH,
        values_KBSH,
        o_RNH,
        part_UNH,
        lse_UN,
        tiles.counts,
        tiles.fields_TF,
        tiles.blocks,
        tiles.queries_Q3,
        scale * math.log2(math.e),
        q_RNH.stride(0),
        q_RNH.stride(1),
        keys_KBSH.stride(0),
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        WIDTH=width,
        KV_BLOCK=block_size,
        WIDE=tiles.wide_rows if wide else 0,
        NARROW=tiles.narrow_rows,
        BLOCK_L=launch.tokens,
        BLOCK_H=block_h,
        UPCAST=INTERPRETED and q_RNH.dtype == torch.bfloat16,
        num_warps=launch.warps,
        num_stages=launch.stages,
    )
    if tiles.capacity.slots:
        _merge[(min(rows, tiles.capacity.rows), heads)](
            part_UNH,
            lse_UN,
            o_RNH,
            tiles.first_R,
            heads,
            width,
            PARTS=MERGED,
            BLOCK_H=block_h,
        )
    return o_RNH


def _check_layout(q_RNH: Tensor, keys_KBSH: Tensor, values_KBSH: Tensor) -> None:
    """Raise ValueError unless the strides are those that the kernel assumes."""
    _, _, block_size, width = keys_KBSH.shape
    contiguous = (block_size * width, width, 1)
    if keys_KBSH.stride() != values_KBSH.stride() or keys_KBSH.stride()[1:] != contiguous:
        raise ValueError("attention needs each head's blocks contiguous: (K, B, S, H)")
    if q_RNH.stride(2) != 1:
        raise ValueError("attention needs the queries contiguous in their last dimension")


@kernel
def _attend(
    q: tl.tensor, keys: tl.tensor, values: tl.tensor, o: tl.tensor, part: tl.tensor,
    lse: tl.tensor, counts: tl.tensor, fields: tl.tensor, blocks: tl.tensor, queries: tl.tensor,
    scale: tl.tensor, q_row: tl.tensor, q_head: tl.tensor, kv_head: tl.tensor,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, KV_BLOCK: tl.constexpr,
    WIDE: tl.constexpr, NARROW: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_H: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:  # fmt: skip
    """Compute every tile for every KV head: first the wide tiles, then the narrow ones. With a WIDE
    of 0 there are no wide tiles."""
    first, step = tl.program_id(0), tl.num_programs(0)
    past = tl.load(counts + 1) * KV_HEADS
    if WIDE:
        wide = tl.load(counts) * KV_HEADS
        for at in range(first, wide, step):
            _tile(
                at, q, keys, values, o, part, lse, fields, blocks, queries, scale, q_row, q_head,
                kv_head, KV_HEADS, GROUP, WIDTH, KV_BLOCK, WIDE, BLOCK_L, BLOCK_H, UPCAST,
            )  # fmt: skip
        first += (tl.maximum(wide - first, 0) + step - 1) // step * step
    for at in range(first, past, step):
        _tile(
            at, q, keys, values, o, part, lse, fields, blocks, queries, scale, q_row, q_head,
            kv_head, KV_HEADS, GROUP, WIDTH, KV_BLOCK, NARROW, BLOCK_L, BLOCK_H, UPCAST,
        )  # fmt: skip


@kernel
def _tile(
    at: tl.tensor, q: tl.tensor, keys: tl.tensor, values: tl.tensor, o: tl.tensor, part: tl.tensor,
    lse: tl.tensor, fields: tl.tensor, blocks: tl.tensor, queries: tl.tensor, scale: tl.tensor,
    q_row: tl.tensor, q_head: tl.tensor, kv_head: tl.tensor, KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, KV_BLOCK: tl.constexpr, M: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_H: tl.constexpr, UPCAST: tl.constexpr,
) -> None:  # fmt: skip
    """Compute one tile for one KV head. Row m is query m // G and query head m % G of that head."""
    head = tl.cast(at % KV_HEADS, tl.int64)
    tile = fields + (at // KV_HEADS) * 6
    blocks += tl.load(tile)
    begin, length, count = tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 4)
    m, h = tl.arange(0, M), tl.arange(0, BLOCK_H)
    here_M = m < count * GROUP
    query = queries + (tl.load(tile + 3) + m // GROUP) * 3
    row_M = tl.load(query, mask=here_M, other=0).to(tl.int64)
    visible_M = tl.load(query + 1, mask=here_M, other=0) - begin
    slot_M = tl.load(query + 2, mask=here_M, other=-1).to(tl.int64)  # tiles.NO_SLOT is negative
    head_M = head * GROUP + m % GROUP
    here_MH = here_M[:, None] & (h < WIDTH)[None, :]
    q_MH = tl.load(q + (row_M * q_row + head_M * q_head)[:, None] + h[None, :], here_MH, other=0.0)
    keys, values = keys + head * kv_head, values + head * kv_head
    if UPCAST:
        q_MH = q_MH.to(tl.float32)
    top_M = tl.full([M], float("-inf"), tl.float32)
    sum_M = tl.zeros([M], tl.float32)
    acc_MH = tl.zeros([M, BLOCK_H], tl.float32)
    for token in range(0, length, BLOCK_L):
        at_L = token + tl.arange(0, BLOCK_L)
        here_LH = (at_L < length)[:, None] & (h < WIDTH)[None, :]
        kv_block_L = tl.load(blocks + at_L // KV_BLOCK, mask=at_L < length, other=0).to(tl.int64)
        row_LH = ((kv_block_L * KV_BLOCK + at_L % KV_BLOCK) * WIDTH)[:, None] + h[None, :]
        key_LH = tl.load(keys + row_LH, mask=here_LH, other=0.0)
        value_LH = tl.load(values + row_LH, mask=here_LH, other=0.0)
        if UPCAST:
            key_LH, value_LH = key_LH.to(tl.float32), value_LH.to(tl.float32)
        # "ieee": otherwise a float32 product uses only ten bits of mantissa on a device.
        score_ML = tl.dot(q_MH, tl.trans(key_LH), input_precision="ieee") * scale
        seen_ML = at_L[None, :] < tl.minimum(visible_M, length)[:, None]
        score_ML = tl.where(seen_ML, score_ML, float("-inf"))
        new_M = tl.maximum(top_M, tl.max(score_ML, axis=1))
        # A row without a visible token has a top of -inf, and (-inf) - (-inf) would be NaN.
        base_M = tl.where(new_M == float("-inf"), 0.0, new_M)
        p_ML = tl.exp2(score_ML - base_M[:, None])
        keep_M = tl.exp2(top_M - base_M)
        sum_M = sum_M * keep_M + tl.sum(p_ML, axis=1)
        acc_MH = acc_MH * keep_M[:, None]
        acc_MH += tl.dot(p_ML.to(value_LH.dtype), value_LH, input_precision="ieee")
        top_M = new_M
    # The sum is at least 1 if a token was visible. Otherwise the top is -inf, and so is the lse.
    sum_M = tl.where(sum_M == 0.0, 1.0, sum_M)
    acc_MH, lse_M = acc_MH / sum_M[:, None], top_M + tl.log2(sum_M)
    out_M = (row_M * KV_HEADS * GROUP + head_M) * WIDTH
    at_MH = here_MH & (slot_M < 0)[:, None]
    tl.store(o + out_M[:, None] + h[None, :], acc_MH.to(o.dtype.element_ty), mask=at_MH)
    put_M = (slot_M + tl.load(tile + 5)) * KV_HEADS * GROUP + head_M
    at_MH = here_MH & (slot_M >= 0)[:, None]
    tl.store(part + (put_M * WIDTH)[:, None] + h[None, :], acc_MH, mask=at_MH)
    tl.store(lse + put_M, lse_M, mask=here_M & (slot_M >= 0))


@kernel
def _merge(
    part: tl.tensor,
    lse: tl.tensor,
    o: tl.tensor,
    first: tl.tensor,
    heads: tl.tensor,
    width: tl.tensor,
    PARTS: tl.constexpr,
    BLOCK_H: tl.constexpr,
) -> None:
    """Merge one row's partial results for one head, weighted by exp2(lse - largest lse)."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin, past = tl.load(first + row), tl.load(first + row + 1)
    if past > begin:
        h = tl.arange(0, BLOCK_H)
        top = tl.full([1], -1e30, tl.float32)  # finite, in case no partial result saw a token
        sum_1 = tl.zeros([1], tl.float32)
        acc_H = tl.zeros([BLOCK_H], tl.float32)
        for at in range(begin, past, PARTS):
            slot_U = (at + tl.arange(0, PARTS)).to(tl.int64)
            here_U = slot_U < past
            lse_U = tl.load(lse + slot_U * heads + head, mask=here_U, other=float("-inf"))
            here_UH = here_U[:, None] & (h < width)[None, :]
            part_UH = part + ((slot_U * heads + head) * width)[:, None] + h[None, :]
            new = tl.maximum(top, tl.max(lse_U, axis=0))
            weight_U = tl.exp2(lse_U - new)
            keep = tl.exp2(top - new)
            sum_1 = sum_1 * keep + tl.sum(weight_U, axis=0)
            found_UH = tl.load(part_UH, mask=here_UH, other=0.0)
            acc_H = acc_H * keep + tl.sum(found_UH * weight_U[:, None], axis=0)
            top = new
        narrow = o.dtype.element_ty
        tl.store(o + (row * heads + head) * width + h, (acc_H / sum_1).to(narrow), mask=h < width)
