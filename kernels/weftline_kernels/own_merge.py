"""Attention to a shared prefix in Triton, and its merge with a library's result for the own part.

R = packed query rows, N = query heads, H = head size, U = slots.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# `_attend` is launched here, too. A launcher beside it would change the hash by which kept results
# of GPUs name that file, and its kernel is the one that was measured.
from weftline_kernels.attention_triton import (
    MERGED,
    _attend,
    _merge,
    compute_capability,
    launch_of,
    units,
)
from weftline_kernels.device_tiles import DeviceTiles
from weftline_kernels.jit import INTERPRETED, kernel, power_of_two, tl


def own_merge_reference(
    part_UNH: Tensor,
    lse_UN: Tensor,
    first_R: Tensor,
    own_RNH: Tensor,
    own_lse_RN: Tensor,
    to_log2: float,
) -> Tensor:
    """The reference: each row's own result and those of its slots but the last one, which is for
    the own result, weighted by exp2 of their log-sum-exp. `to_log2` turns the library's log-sum-exp
    to base 2, as ours is."""
    merged_RNH = torch.empty_like(own_RNH)
    first = first_R.tolist()
    for row in range(len(own_RNH)):
        slots = slice(first[row], max(first[row], first[row + 1] - 1))
        lse = torch.cat([lse_UN[slots], own_lse_RN[row : row + 1] * to_log2]) * math.log(2)
        parts = torch.cat([part_UNH[slots], own_RNH[row : row + 1].to(part_UNH.dtype)])
        merged_RNH[row] = (lse.softmax(0)[..., None] * parts).sum(0).to(own_RNH.dtype)
    return merged_RNH


def attend_beside(
    tiles: DeviceTiles,
    q_RNH: Tensor,
    keys_KBSH: Tensor,
    values_KBSH: Tensor,
    scale: float,
    own: tuple[Tensor, Tensor],
    to_log2: float,
    *,
    wide: bool,
) -> Tensor:
    """Attend to the shared tiles, which all have slots, and merge into `own`: (R, N, H) and (R, N).

    The launch is that of `attention_triton.attend`, which merges for itself and gives no
    log-sum-exp.
    """
    own_RNH, own_lse_RN = own
    _, heads, width = q_RNH.shape
    kv_heads, _, block_size, _ = keys_KBSH.shape
    slots, dtype, device = tiles.capacity.slots, q_RNH.dtype, q_RNH.device
    part_UNH = torch.empty(slots, heads, width, dtype=torch.float32, device=device)
    lse_UN = torch.empty(slots, heads, dtype=torch.float32, device=device)
    sm = compute_capability(device)
    launch = launch_of(dtype, tiles.narrow_rows, width, sm, wide=wide)
    programs = launch.programs * units(device)
    block_h = max(16, power_of_two(width))
    _attend[(max(1, min(programs, tiles.capacity.tiles * kv_heads)),)](
        q_RNH, keys_KBSH, values_KBSH, own_RNH, part_UNH, lse_UN,
        tiles.counts, tiles.fields_TF, tiles.blocks, tiles.queries_Q3,
        scale * math.log2(math.e), q_RNH.stride(0), q_RNH.stride(1), keys_KBSH.stride(0),
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        WIDTH=width,
        KV_BLOCK=block_size,
        WIDE=tiles.wide_rows if wide else 0,
        NARROW=tiles.narrow_rows,
        BLOCK_L=launch.tokens,
        BLOCK_H=block_h,
        UPCAST=INTERPRETED and dtype == torch.bfloat16,
        num_warps=launch.warps,
        num_stages=launch.stages,
    )  # fmt: skip
    own_merge(part_UNH, lse_UN, tiles.first_R, own_RNH, own_lse_RN, to_log2)
    return own_RNH


def own_merge(
    part_UNH: Tensor,
    lse_UN: Tensor,
    first_R: Tensor,
    own_RNH: Tensor,
    own_lse_RN: Tensor,
    to_log2: float,
) -> None:
    """Do `own_merge_reference` in place. A row without slots keeps its own result.

    Raises ValueError if the own results are not contiguous.
    """
    if not own_RNH.is_contiguous():
        raise ValueError("the merge needs a library's results contiguous: (R, N, H)")
    rows, heads, width = own_RNH.shape
    _own_merge[(rows, heads)](
        part_UNH, lse_UN, own_RNH, first_R, heads, width,
        own_lse_RN, to_log2, own_lse_RN.stride(0), own_lse_RN.stride(1),
        PARTS=MERGED, BLOCK_H=max(16, power_of_two(width)),
    )  # fmt: skip


@kernel
def _own_merge(
    part: tl.tensor,
    lse: tl.tensor,
    own: tl.tensor,
    first: tl.tensor,
    heads: tl.tensor,
    width: tl.tensor,
    own_lse: tl.tensor,
    to_log2: tl.tensor,
    lse_row: tl.tensor,
    lse_head: tl.tensor,
    PARTS: tl.constexpr,
    BLOCK_H: tl.constexpr,
) -> None:
    """Put one row's own result for one head into its last slot, and merge its slots over it."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    past = tl.load(first + row + 1)
    if past > tl.load(first + row):
        h = tl.arange(0, BLOCK_H)
        slot = (past - 1).to(tl.int64) * heads + head
        own_H = tl.load(own + (row * heads + head) * width + h, mask=h < width, other=0.0)
        tl.store(part + slot * width + h, own_H.to(tl.float32), mask=h < width)
        tl.store(lse + slot, tl.load(own_lse + row * lse_row + head * lse_head) * to_log2)
        tl.debug_barrier()  # other threads of the program read them
        _merge(part, lse, own, first, heads, width, PARTS, BLOCK_H)
