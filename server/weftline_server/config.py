"""The settings of the server, which the operator decides; each field is explained here."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from weftline.contract.errors import InvalidRequest
from weftline_server.cluster.session_lease import LeaseConfig
from weftline_server.http.kept_responses import ResponsesConfig
from weftline_server.journal.kept_objects import KeptConfig
from weftline_server.journal.store import JournalStoreConfig
from weftline_server.observe.cost import Price
from weftline_server.runtime.registry import RegistryConfig
from weftline_server.schedule.placement.scores import POLICIES

# The names that `without` takes: what is worth 3 % of the time somewhere, as docs/serving.md says.
# The embedded engine has drafting and tree_attention, the embedders and rerankers have dedupe, and
# the server has the others.
OPTIMISATIONS = frozenset(
    {
        "admission",
        "affinity",
        "batch",
        "conversations",
        "dedupe",
        "drafting",
        "early_tools",
        "groups",
        "joins",
        "length_prediction",
        "memory_rank",
        "prefill_early",
        "prefix",
        "retention",
        "speculate",
        "tool_pauses",
        "tree_attention",
    }
)

_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\-]+(:\d{1,5})?|https?://\[[0-9a-f:]+\](:\d{1,5})?")

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """All settings; raises InvalidRequest for values that do not fit.

    `policy` is `app` or `request`. `without` names the optimisations that are off, so that a
    benchmark can measure the gain of each; OPTIMISATIONS lists the names. `keys` maps an API key to
    its tenant. Without keys all clients are one tenant, and only a loopback host is allowed.
    """

    host: str = "127.0.0.1"
    port: int = 8600
    policy: str = "app"
    without: frozenset[str] = frozenset()
    keys: dict[str, str] = field(default_factory=dict)
    max_body: int = 8 << 20  # bytes of a request
    metrics_tenant: str = ""  # who may read /metrics where there are several tenants
    max_calls: int = 10_000  # of one submit
    cors: tuple[str, ...] = ()  # origins of web pages that may send requests; "*" is every one
    ui: bool = True  # serve the page /ui
    max_requests: int = 4096  # of a tenant that are under way; a waiting get is one
    price: dict[str, Price] = field(default_factory=dict)  # of a million tokens, by model
    otlp: str = ""  # URL of a collector of OpenTelemetry that takes OTLP over HTTP
    otlp_texts: bool = False  # the spans have prompts and answers
    refuse_hosted_tools: bool = False  # of responses, such as web_search; else they are left out
    restore_thoughts: bool = True  # that a client has dropped from its turns, while tools run
    log_prompts: bool = False  # the log lines of calls contain their prompts and outputs
    sessions: JournalStoreConfig = field(default_factory=JournalStoreConfig)  # on disk
    cluster: LeaseConfig = field(default_factory=LeaseConfig)  # of servers with one store
    registry: RegistryConfig = field(default_factory=RegistryConfig)
    responses: ResponsesConfig = field(default_factory=ResponsesConfig)
    kept: KeptConfig = field(default_factory=KeptConfig)  # what clients of /v1/responses leave

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise InvalidRequest(
                f"policy {self.policy!r} is none of {', '.join(POLICIES)}", param="policy"
            )
        if not 0 <= self.port <= 65_535:
            raise InvalidRequest(
                f"{self.port} is no port: use 1 to 65535, or 0 for one that is free", param="port"
            )
        for name in self.without - OPTIMISATIONS:
            raise InvalidRequest(
                f"{name!r} cannot be left out: use one of {', '.join(sorted(OPTIMISATIONS))}",
                param="without",
            )
        if self.otlp and not self.otlp.startswith(("http://", "https://")):
            raise InvalidRequest(
                f"otlp is a URL such as http://127.0.0.1:4318/v1/traces, not {self.otlp[:80]!r}",
                param="otlp",
            )
        for origin in self.cors:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise InvalidRequest(
                    f"{origin!r} is no origin: write https://HOST or http://HOST:PORT", param="cors"
                )
        if "*" in self.cors and not self.keys:
            raise InvalidRequest(
                "cors '*' would let every web page use a server without keys: name the origins, "
                "or give --api-key-file",
                param="cors",
            )
        if self.host not in LOOPBACK and not self.keys:
            raise InvalidRequest(
                f"host {self.host} can be reached by others, so it needs API keys: "
                "give --api-key-file, or serve on 127.0.0.1",
                param="host",
            )
