"""The settings of a vLLM that is started."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from weftline_engine.api.engine_option import VLLM, setting


class SchedulerChoice(StrEnum):
    """The scheduler that a child runs. `AUTO` means ours, if it knows the version of vLLM."""

    AUTO = "auto"
    WEFTLINE = "weftline"
    VLLM = "vllm"


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMSettings:
    """A child is started by `engine_python`, an interpreter that has vLLM. It copies contexts into
    `host_kv_gib` GiB of host memory, on GPUs by default into half of what is free. `vllm_arguments`
    are added to its command line."""

    engine_python: str | None = setting(
        None, VLLM, "interpreter that has vLLM, to start vLLM with", metavar="PATH"
    )
    tensor_parallel: int = setting(
        1, VLLM, "number of GPUs that one vLLM uses (default: 1)", metavar="GPUS", type=int
    )
    host_kv_gib: float | None = setting(
        None,
        VLLM,
        "host memory into which a vLLM on GPUs copies contexts, and reads them back; 0 is none "
        "(default: half of what is free, if that is 16 GiB)",
        metavar="GIB",
        type=float,
    )
    vllm_scheduler: SchedulerChoice = setting(
        SchedulerChoice.AUTO,
        VLLM,
        "whose scheduler a vLLM that is started runs; auto is weftline's where it knows the "
        "version of vLLM (default: auto)",
        choices=SchedulerChoice,
    )
    vllm_arguments: tuple[str, ...] = setting(
        (),
        VLLM,
        'words to add to vLLM\'s command line, as --vllm-arguments="--block-size 32" (default: '
        "none)",
        metavar="WORD",
        nargs="*",
    )
