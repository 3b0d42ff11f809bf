"""The prompt rows that a step has beside a decode, on each device and in the simulator."""

from __future__ import annotations

import torch

from bench.simulator.calibration import start_from
from weftline_engine.embedded.devices import beside_tokens


def test_the_simulator_has_the_short_steps_of_a_cpu() -> None:
    """They are never more than a step. A GPU's steps stay as they are."""
    cpu = torch.device("cpu")
    assert beside_tokens(cpu, 512) == start_from().beside_tokens == 96
    assert beside_tokens(cpu, 80) == 80
    assert beside_tokens(torch.device("cuda"), 2048) == 2048
