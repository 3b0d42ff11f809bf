"""Parts of the C decoder by themselves, for tests and measurements.

T = rows, Y = inputs of a product, X = its columns.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p

import torch
from torch import Tensor

from weftline_kernels.cpu.blocks import WeightType
from weftline_kernels.cpu.layout import rounded_rows, scratch_row, stride
from weftline_kernels.cpu.panels import Panels, addresses


class Parts:
    """Functions of one build of the decoder, on `threads` threads."""

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        self.threads, self._panels = threads, Panels(library, threads)
        self.panel = self._panels.columns
        self._inputs = library.weftline_inputs
        self._inputs.argtypes = [c_void_p, c_int64, c_int64, c_void_p]
        self._product = library.weftline_product
        inputs, weights = (c_void_p, c_int64, c_int64), (c_int32, c_void_p)
        results = (c_void_p, c_int64, c_void_p, c_int32)
        self._product.argtypes = [*inputs, *weights, *results]
        self._norms = library.weftline_norms
        self._norms.argtypes = [c_void_p, c_void_p, c_int64, c_int64, c_float, c_void_p]
        self._exp = library.weftline_exp
        self._exp.argtypes = [c_void_p, c_int64, c_void_p]
        self._peak = library.weftline_peak
        self._peak.argtypes = [c_int64, c_int32]
        self._peak.restype = c_int64

    def weights(self, weight_XY: Tensor) -> Tensor:
        """The weights of a product as `product` takes them."""
        rows = weight_XY.bfloat16().contiguous().view(torch.uint8).numpy()
        packed = self._panels.pack(WeightType.BF16, addresses(rows), weight_XY.shape[1])
        return torch.from_numpy(packed)

    def inputs(self, x_TY: Tensor) -> Tensor:
        """Rows as `product` takes them. Padding is 0."""
        rows, width = x_TY.shape
        laid = torch.zeros(rows, stride(width))
        self._inputs(x_TY.contiguous().data_ptr(), rows, width, laid.data_ptr())
        return laid

    def product(
        self,
        laid: Tensor,
        packed: Tensor,
        inner: int,
        width: int,
        kind: WeightType = WeightType.BF16,
    ) -> Tensor:
        """The product (T, X) of laid out rows of `inner` numbers and packed weights."""
        rows = len(laid)
        rounded = torch.empty(rounded_rows(rows) * scratch_row(inner), dtype=torch.int8)
        out_TX = torch.empty(rows, width)
        self._product(
            laid.data_ptr(),
            rows,
            inner,
            kind,
            packed.data_ptr(),
            rounded.data_ptr(),
            width,
            out_TX.data_ptr(),
            self.threads,
        )
        return out_TX

    def norms(self, x_TY: Tensor, weight_Y: Tensor, eps: float, out: Tensor) -> None:
        """Normalise rows. `out` holds inputs of a product."""
        rows, width = x_TY.shape
        self._norms(x_TY.data_ptr(), weight_Y.data_ptr(), rows, width, eps, out.data_ptr())

    def exp(self, x: Tensor, out: Tensor) -> None:
        """exp of numbers that are at most 0; their count is a multiple of 16."""
        self._exp(x.data_ptr(), x.numel(), out.data_ptr())

    def peak(self, rounds: int) -> int:
        """Multiply and add in registers. Returns the number of products."""
        return rounds * int(self._peak(rounds, self.threads))
