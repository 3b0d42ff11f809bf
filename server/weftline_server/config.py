"""What the operator decides about the server; every field explained, none read from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field

from weftline.errors import InvalidRequest
from weftline_server.http.answers import AnswersConfig
from weftline_server.passes import PASSES
from weftline_server.runtime.registry import RegistryConfig
from weftline_server.schedule.placement import POLICIES

# The last one is the embedded engine's, the others the server's own.
OPTIMISATIONS = frozenset(PASSES) | {
    *("admission", "affinity", "prefill_early", "retention", "tree_attention"),
}

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """`policy` is `app` or `request`. `keys` maps an API key to its tenant; without keys everybody
    is one tenant, and only a loopback host is allowed. `without` names optimisations that are off,
    of OPTIMISATIONS: a benchmark measures what each of them earns. `max_body` bounds a request,
    in bytes.
    """

    host: str = "127.0.0.1"
    port: int = 8600
    policy: str = "app"
    without: frozenset[str] = frozenset()
    keys: dict[str, str] = field(default_factory=dict)
    max_body: int = 8 << 20
    max_calls: int = 10_000  # of one submit
    log_prompts: bool = False  # the lines about calls hold what was said in them
    registry: RegistryConfig = field(default_factory=RegistryConfig)
    answers: AnswersConfig = field(default_factory=AnswersConfig)

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise InvalidRequest(
                f"policy {self.policy!r} is none of {', '.join(POLICIES)}", param="policy"
            )
        for name in self.without - OPTIMISATIONS:
            raise InvalidRequest(
                f"{name!r} is none of what can be left out: {', '.join(sorted(OPTIMISATIONS))}",
                param="without",
            )
        if self.host not in LOOPBACK and not self.keys:
            raise InvalidRequest(
                f"host {self.host} can be reached by others, so it needs API keys: "
                "give --api-key, or serve on 127.0.0.1",
                param="host",
            )
