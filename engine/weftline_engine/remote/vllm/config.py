"""The settings of a vllm engine, and the command line that starts vLLM with them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weftline_engine.remote.openai.breaker import BreakerConfig
from weftline_engine.remote.openai.endpoint import EndpointConfig
from weftline_engine.remote.prefix_cache.event_feed import EventAddresses
from weftline_engine.remote.vllm.versions import HOST_CONNECTOR, HOST_POLICY, SCHEDULER
from weftline_engine.remote.vllm.vllm_settings import VLLMSettings

# Tokens of a KV block of a vLLM that computes on the CPU; by itself it takes 128. A prompt that
# shares its beginning computes the last, incomplete block of it anew. A program of reviews and
# revisions computed 3,830 tokens of its prompts instead of 6,070, and steps took as long.
CPU_BLOCK = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMConfig(VLLMSettings):
    """Settings of a vllm engine. Raises ValueError unless it is started or connected to.

    `model` is the model's directory; the server uses its tokenizer and chat template. `connect` is
    the address of a vLLM that already runs, and `served` its name of the model (None: the first one
    it lists). `kv_events` is where it publishes its KV events; None means that it does not, and is
    given to a child by itself. Of the data-parallel ranks behind `connect`, all calls go to `rank`;
    None lets vLLM choose for each call.
    """

    model: Path
    connect: EndpointConfig | None = None
    served: str | None = None
    kv_events: EventAddresses | None = None
    rank: int | None = None
    name: str | None = None
    dtype: str = "bfloat16"
    max_model_len: int | None = None
    max_running: int = 64
    ready_s: float = 900.0  # seconds for loading weights and, on a GPU, compiling
    breaker: BreakerConfig = field(default_factory=BreakerConfig)

    def __post_init__(self) -> None:
        if (self.engine_python is None) == (self.connect is None):
            raise ValueError("vLLM needs either --engine-python or --connect")

    @property
    def announced(self) -> str:
        """The model's name for clients."""
        return self.name or self.model.name

    def events_in(self, folder: Path) -> EventAddresses | None:
        """Where a child with its sockets in `folder` publishes its KV events. None if it publishes
        them where `vllm_arguments` say."""
        if any(one.startswith("--kv-events-config") for one in self.vllm_arguments):
            return None
        return EventAddresses(f"ipc://{folder / 'events'}", f"ipc://{folder / 'replay'}")

    def command(
        self, folder: Path, *, ours: bool, on_cpu: bool, host_gib: float = 0.0
    ) -> list[str]:
        """Return the child's command line. vLLM listens only on unix sockets in `folder`.

        With `ours` vLLM runs weftline's scheduler, and answers tell the times of their phases. Its
        contexts are copied into `host_gib` GiB. `vllm_arguments` come last, so they count.
        """
        assert self.engine_python is not None
        options = {
            "--uds": str(folder / "http"),
            "--model": str(self.model),
            "--served-model-name": self.announced,
            "--dtype": self.dtype,
            "--max-num-seqs": str(self.max_running),
            "--scheduling-policy": "priority",  # without it vLLM refuses a request's priority
            "--disable-access-log-for-endpoints": "/health",
        }
        flags = [
            "--enable-prefix-caching",
            "--enable-prompt-tokens-details",
            "--disable-uvicorn-access-log",
        ]
        if self.max_model_len is not None:
            options["--max-model-len"] = str(self.max_model_len)
        if ours:
            options["--scheduler-cls"] = SCHEDULER
            flags.append("--enable-per-request-metrics")
        if (events := self.events_in(folder)) is not None:
            published = {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": events.events,
                "replay_endpoint": events.replay,
            }
            options["--kv-events-config"] = json.dumps(published)
        if host_gib:
            options["--kv-transfer-config"] = json.dumps(offloading(host_gib, ours=ours))
        if on_cpu:
            options["--block-size"] = str(CPU_BLOCK)
        if self.tensor_parallel > 1:
            options["--tensor-parallel-size"] = str(self.tensor_parallel)
        return [
            self.engine_python,
            "-m",
            "vllm.entrypoints.openai.api_server",
            *(word for option in options.items() for word in option),
            *flags,
            *self.vllm_arguments,
        ]


def offloading(gib: float, *, ours: bool = False) -> dict[str, Any]:
    """The settings of vLLM's own connector, which copies blocks to host memory and back. Its KV
    events then name the tokens of what it has copied. With `ours` full host memory drops what is
    read last, else what was used least recently."""
    more: dict[str, Any] = {
        "cpu_bytes_to_use": round(gib * (1 << 30)),
        "self_describing_kv_events": True,
    }
    if ours:
        module, _, name = HOST_POLICY.rpartition(".")
        more |= {"eviction_policy": name, "cache_policy_module_path": module}
    return {
        "kv_connector": HOST_CONNECTOR,
        "kv_role": "kv_both",
        "kv_connector_extra_config": more,
    }
