"""Memory for weights: pieces of large mappings."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from weftline_kernels.cpu.memory import WeightMemory


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(1, 3 * 4096), max_size=40))
def test_pieces_are_aligned_zero_and_apart(sizes: list[int]) -> None:
    """Small chunks make pieces that begin a new mapping, and some that are larger than one."""
    source = WeightMemory(chunk=8192)
    pieces = [source.bytes(size) for size in sizes]
    for number, (piece, size) in enumerate(zip(pieces, sizes, strict=True)):
        assert piece.nbytes == size and piece.ctypes.data % 64 == 0
        assert not piece.any()
        piece[:] = number % 255 + 1
    for number, piece in enumerate(pieces):
        assert (piece == number % 255 + 1).all()


def test_a_mapping_begins_with_a_large_page_and_outlives_its_source() -> None:
    """The first piece lies on 2 MB. It can be written when nothing else knows the mapping."""
    piece = WeightMemory().bytes(1 << 22)
    assert piece.ctypes.data % (1 << 21) == 0
    piece[-1] = 7
    assert piece[-1] == 7 and not piece[:-1].any()
