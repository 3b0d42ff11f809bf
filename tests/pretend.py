"""A pretended device for machines without a GPU.

Its tensors lie in the host's memory, but an operation that mixes them with host tensors fails. So a
test finds the lines that would fail on a GPU: an operation on tensors of both memories, a kernel
that gets a host tensor, and a value that is read where the host should not wait. The device is
called "meta", because torch knows that name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")


class OnDevice(torch.Tensor):
    """A tensor on DEVICE. `inner` holds its values."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> OnDevice:
        found: OnDevice = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=DEVICE
        )
        found.inner = inner
        return found

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:
        """All values at once: an explicit copy to the host, which is allowed."""
        return self.inner.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("a tensor of a device has no memory that numpy could read")


class Pretending(TorchDispatchMode):
    """A mode in which tensors that are made on DEVICE become `OnDevice`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def kernel(launched: Any) -> Any:
    """Wrap a kernel (`kernel[grid](...)`) so that it takes tensors on DEVICE only."""

    class Launcher:
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            def launch(*args: Any, **options: Any) -> None:
                assert not any(_is_host(arg) for arg in args), "a kernel gets a host's tensor"
                with _disable_current_modes():
                    launched[grid](*map(_inner, args), **options)

            return launch

    return Launcher()


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = str(func)
    tensors = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
    on_device = any(isinstance(one, OnDevice) for one in tensors)
    assert not (on_device and "_local_scalar_dense" in name), "the host waits for a value"
    if kwargs.get("device") is not None:
        on_device = torch.device(kwargs["device"]) == DEVICE
        kwargs = {**kwargs, "device": torch.device("cpu")}
    elif "copy_" in name:
        on_device = isinstance(args[0], OnDevice)
    elif on_device:
        assert not any(_is_host(one) for one in tensors), f"{name} on tensors of both memories"
    kwargs = {key: value for key, value in kwargs.items() if key != "pin_memory"}
    with _disable_current_modes():
        found = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
    if name.split(".")[1].endswith("_"):
        return args[0]  # changed in place
    return tree_map(lambda x: OnDevice(x) if on_device and _is_host(x) else x, found)


def _is_host(value: Any) -> bool:
    """Whether it is a host tensor. Tensors without dimensions are numbers and may go anywhere."""
    return isinstance(value, torch.Tensor) and not isinstance(value, OnDevice) and value.dim() > 0


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, OnDevice) else value
