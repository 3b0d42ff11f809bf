"""The settings of an sglang engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from weftline_engine.remote.openai.breaker import BreakerConfig
from weftline_engine.remote.openai.endpoint import EndpointConfig
from weftline_engine.remote.prefix_cache.event_feed import EventAddresses


@dataclass(frozen=True, slots=True, kw_only=True)
class SGLangConfig:
    """Settings of an sglang engine.

    `model` is the model's directory, whose tokenizer and chat template the server uses. `connect`
    is the address of SGLang, without a path, and `served` its name of the model (None: the first
    one it lists). `kv_events` is where it publishes its KV events; None means that it does not.
    """

    model: Path
    connect: EndpointConfig
    served: str | None = None
    name: str | None = None
    kv_events: EventAddresses | None = None
    max_running: int = 64
    breaker: BreakerConfig = field(default_factory=BreakerConfig)

    @property
    def announced(self) -> str:
        """The model's name for clients."""
        return self.name or self.model.name
