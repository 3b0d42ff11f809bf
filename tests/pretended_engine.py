"""The embedded engine on a pretended device: what a test puts in place, and a child process of it.

`python -m tests.pretended_engine --fd N --model DIR` is the engine's usual child process with our
kernels' stand-ins in torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from tests import pretend
from tests.torch_kernels import KERNELS, StandIn
from weftline_engine.own import engine_process, loading
from weftline_engine.own.embedded import devices, torch_device
from weftline_engine.own.embedded.config import EmbeddedConfig
from weftline_engine.own.embedded.model.device_model import CapturedStep, DeviceModel
from weftline_engine.own.embedded.model.families import read_config
from weftline_engine.own.embedded.model.torch_decoders import torch_model
from weftline_engine.own.embedded.model.weights import checkpoint
from weftline_engine.own.embedded.torch_device import TorchDevice
from weftline_kernels.operations import TRITON


@dataclass(frozen=True, slots=True)
class PretendedConfig:
    """The settings of a child process on a pretended device."""

    embedded: EmbeddedConfig

    module: ClassVar[str] = "tests.pretended_engine"

    def environment(self, outer: Mapping[str, str]) -> dict[str, str]:
        return dict(outer)

    def arguments(self, fd: int) -> list[str]:
        return self.embedded.arguments(fd)


def install(
    patch: pytest.MonkeyPatch, kernels: Mapping[tuple[ModuleType, str], Any]
) -> pretend.Pretending:
    """A pretended device that runs these kernels, each put in its module under its name. The log
    has the engine's launches and reads. The caller enters the mode."""
    mode = pretend.Pretending()
    for (module, name), launched in kernels.items():
        patch.setattr(module, name, pretend.kernel(launched, mode, name))
    # torch's inference mode and its tensor subclasses do not go together.
    patch.setattr(TorchDevice, "computing", lambda self: torch.no_grad())
    patch.setattr(DeviceModel, "warm", torch.no_grad()(vars(DeviceModel.warm)["__wrapped__"]))
    for name in ("load", "replay"):
        patch.setattr(CapturedStep, name, _still(mode, getattr(CapturedStep, name)))
    forward = DeviceModel.forward

    def logged(self: DeviceModel, *args: Any) -> Tensor:
        mode.log.append("launch")
        return forward(self, *args)

    patch.setattr(DeviceModel, "forward", logged)
    patch.setattr(torch_device, "mark", mode.mark)
    return mode


def _still(mode: pretend.Pretending, method: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **options: Any) -> Any:
        with mode.still():
            return method(*args, **options)

    return wrapped


def main() -> None:
    """Serve as the embedded engine's child process does."""
    patch = pytest.MonkeyPatch()
    mode = install(patch, {key: StandIn(function) for key, function in KERNELS.items()})

    def decoder(options: argparse.Namespace, device: TorchDevice) -> DeviceModel:
        dtype = getattr(torch, options.dtype)
        weights = checkpoint(options.model)
        network = torch_model(read_config(options.model), weights, dtype, device.device, TRITON)
        return DeviceModel(network, max_running=options.max_running, capture=mode.capture)

    load = loading.load

    def loaded(options: argparse.Namespace) -> Any:
        with mode.start():
            return load(options)

    patch.setattr(devices, "choose", lambda wanted, dtype: TorchDevice(pretend.DEVICE))
    patch.setattr(loading, "_decoder", decoder)
    patch.setattr(loading, "load", loaded)
    with mode:
        engine_process.main()


if __name__ == "__main__":
    main()
