"""A pretended device for machines without a GPU.

Its tensors lie in the host's memory, but what would fail or wait on a GPU fails here: an operation
on tensors of both memories, a kernel that gets a host tensor, a value that the host reads outside
`Readback`, an allocation or a copy inside a captured step. Copies to the host arrive when the
host waits for them, and hold nonsense until then. The device is called "meta", because torch knows
that name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")
# Operations whose result the host needs to go on: a value, or the size of what they return.
WAITS = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "equal",
    "_unique2",
    "unique_dim",
    "bincount",
    "repeat_interleave",
)
WAITS_FOR_MASKS = ("index", "index_put", "index_put_", "_index_put_impl_")
# In place of a value that is not there yet.
NONSENSE = -99


class OnDevice(Tensor):
    """A tensor on DEVICE. `inner` holds its values."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnDevice:
        found: OnDevice = Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=DEVICE
        )
        found.inner = inner
        return found

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} on a tensor of a device that is not there any more")

    def tolist(self) -> Any:
        raise AssertionError("the host waits for all values")

    def numpy(self, *, force: bool = False) -> Any:
        raise AssertionError("a tensor of a device has no memory that numpy could read")


class Pretending(TorchDispatchMode):
    """A mode in which tensors that are made on DEVICE become `OnDevice`.

    `log` has a word for each wait of the host; a test may add its own. `captured` names the kernels
    that each captured step launches, torch's and others. An allocation of more than `most_bytes`
    fails as on a device without memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self.captured: list[list[str]] = []
        self.most_bytes: int | None = None
        self._pinned: set[int] = set()  # addresses of host memory that the device may write to
        self._fetches = 0
        # The number of each fetch, the host tensor, and what comes into it.
        self._coming: list[tuple[int, Tensor, Tensor]] = []
        self._still = False
        self._may_wait = False
        self._recorded: list[Callable[[], None]] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func).split(".")[1]
        tensors = _tensors((args, kwargs))
        on_device = any(isinstance(one, OnDevice) for one in tensors)
        if on_device and not self._may_wait:
            assert not _waits(name, args), f"the host waits for {name}"
        if kwargs.get("device") is not None:
            to_host = torch.device(kwargs["device"]) != DEVICE
            assert not (on_device and to_host), f"the host waits for {name}"
            on_device = not to_host
            kwargs = {**kwargs, "device": torch.device("cpu")}
        elif name == "copy_":
            if on_device and not isinstance(args[0], OnDevice):
                self._fetch(*args)
                return args[0]
        elif on_device:
            assert not any(map(_is_host, tensors)), f"{name} on tensors of both memories"
        if on_device:
            self._arrive(tensors)
        return self._compute(func, args, kwargs, on_device=on_device)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Nothing may be allocated on the device meanwhile."""
        self._still = True
        try:
            yield
        finally:
            self._still = False

    @contextmanager
    def start(self) -> Iterator[None]:
        """The host may read values meanwhile: an engine measures its steps before it has any."""
        self._may_wait = True
        try:
            yield
        finally:
            self._may_wait = False

    def mark(self, device: torch.device) -> Callable[[], object]:
        """`memory.mark` for this device: what was fetched before arrives when the host waits."""
        if device != DEVICE:
            return lambda: None
        last = self._fetches

        def wait() -> None:
            self.log.append("read")
            self._deliver(lambda number, _: number <= last)

        return wait

    def capture(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """A `Capture`: replays each operation of `compute` on the very memory that it used."""
        self._recorded = recorded = []
        self.captured.append([])
        logits = compute()
        self._recorded = None

        def replay() -> Tensor:
            with _disable_current_modes():
                for one in recorded:
                    one()
            return logits

        return replay

    def launch(self, run: Callable[[], None], name: str) -> None:
        """Run a kernel, and again in each replay of the step that is being captured."""
        with _disable_current_modes():
            run()
        if self._recorded is not None:
            self._recorded.append(run)
            self.captured[-1].append(name)

    def _compute(self, func: Any, args: Any, kwargs: dict[str, Any], *, on_device: bool) -> Any:
        pinned = kwargs.get("pin_memory", False)
        inside = [tree_map(inner, args), tree_map(inner, dict(kwargs))]
        inside[1].pop("pin_memory", None)
        with _disable_current_modes():
            found = func(*inside[0], **inside[1])
        made = _tensors(found)
        if pinned:
            self._pinned |= {_address(one) for one in made}
        if not on_device:
            return found
        given = _tensors(inside)
        self._allocate(func, [one for one in made if _address(one) not in map(_address, given)])
        if self._recorded is not None:
            assert not any(map(_is_host, _tensors((args, kwargs)))), f"{func} copies in a capture"

            def again() -> None:
                for old, new in zip(made, _tensors(func(*inside[0], **inside[1])), strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)

            self._recorded.append(again)
            if _launches(func):
                self.captured[-1].append(str(func).split(".")[1])
        name = str(func).split(".")[1]
        if name.endswith("_") and not name.endswith("__"):
            return args[0]  # changed in place
        return tree_map(lambda x: OnDevice(x) if isinstance(x, Tensor) else x, found)

    def _allocate(self, func: Any, made: list[Tensor]) -> None:
        size = sum(one.numel() * one.element_size() for one in made)
        assert not (self._still and size), f"{func} allocates {size} bytes in a captured step"
        if self.most_bytes is not None and size > self.most_bytes:
            raise torch.OutOfMemoryError(f"the pretended device has no {size} bytes")

    def _fetch(self, here: Tensor, there: OnDevice, non_blocking: bool = False) -> None:
        """Copy to host memory. The host has nonsense there until it waits."""
        assert non_blocking and _address(here) in self._pinned, "the host waits for a copy"
        assert self._recorded is None, "a copy to the host in a capture"
        with _disable_current_modes():
            self._fetches += 1
            self._coming.append((self._fetches, here, there.inner.clone()))
            here.fill_(NONSENSE)

    def _arrive(self, tensors: list[Tensor]) -> None:
        """Before the device reads host memory, it has written there what it was told before."""
        read = {_address(one) for one in tensors if not isinstance(one, OnDevice)}
        self._deliver(lambda _, here: _address(here) in read)

    def _deliver(self, wanted: Callable[[int, Tensor], bool]) -> None:
        rest = []
        with _disable_current_modes():
            for number, here, value in self._coming:
                if wanted(number, here):
                    here.copy_(value)
                else:
                    rest.append((number, here, value))
        self._coming = rest


def kernel(launched: Any, device: Pretending, name: str = "kernel") -> Any:
    """Wrap a kernel (`kernel[grid](...)`) so that it takes tensors on DEVICE only."""

    class Launcher:
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            def launch(*args: Any, **options: Any) -> None:
                assert not any(map(_is_host, args)), "a kernel gets a host's tensor"
                inside = [inner(arg) for arg in args]

                device.launch(lambda: launched[grid](*inside, **options), name)

            return launch

    return Launcher()


def _launches(func: Any) -> bool:
    """Whether an operation launches a kernel: neither a view of its input nor unset memory."""
    name = str(func).split(".")[1]
    is_view = any(one.alias_info and not one.alias_info.is_write for one in func._schema.returns)
    return not is_view and name not in ("_unsafe_view", "empty", "empty_like", "new_empty")


def _waits(name: str, args: Any) -> bool:
    """Whether the host waits for the device in an operation on its tensors."""
    masks = _tensors(args[1]) if name in WAITS_FOR_MASKS else []
    return name in WAITS or any(one.dtype in (torch.bool, torch.uint8) for one in masks)


def _tensors(values: Any) -> list[Tensor]:
    return [one for one in tree_flatten(values)[0] if isinstance(one, Tensor)]


def _address(tensor: Tensor) -> int:
    return int(inner(tensor).untyped_storage().data_ptr())


def _is_host(value: Any) -> bool:
    """Whether it is a host tensor. Tensors without dimensions are numbers and may go anywhere."""
    return isinstance(value, Tensor) and not isinstance(value, OnDevice) and value.dim() > 0


def inner(value: Any) -> Any:
    """A tensor as a kernel of the device sees it."""
    return value.inner if isinstance(value, OnDevice) else value
