"""What a running SGLang says of itself: its sizes, its switches and how busy it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weftline_engine.remote.openai.endpoint import Endpoint, EndpointError
from weftline_engine.remote.prefix_cache.gauge import GaugeNames

# The first is the newer name; older versions have only the second.
PATHS = ("/server_info", "/get_server_info")
GAUGE = GaugeNames("sglang:token_usage", "sglang:num_queue_reqs", "sglang:num_running_reqs")


@dataclass(frozen=True, slots=True, kw_only=True)
class SGLangFacts:
    """The facts that change what it is sent.

    `priorities` says whether it obeys priorities, and `low_first` that low ones go first. With
    `increments` each event of a stream has only what is new.
    """

    context_limit: int | None = None
    kv_tokens: int | None = None
    block: int = 1  # tokens of which it finds all or none in its cache
    caches: bool = True
    priorities: bool = False
    low_first: bool = False
    increments: bool = False

    @staticmethod
    def of(told: Mapping[str, Any]) -> SGLangFacts:
        """Read the answer of GET /server_info. A field that is not there has its default."""
        return SGLangFacts(
            context_limit=_count(told, "context_length") or _count(told, "max_req_input_len"),
            kv_tokens=_count(told, "max_total_num_tokens"),
            block=_count(told, "page_size") or 1,
            caches=told.get("disable_radix_cache") is not True,
            priorities=told.get("enable_priority_scheduling") is True,
            low_first=told.get("schedule_low_priority_values_first") is True,
            increments=told.get("incremental_streaming_output") is True
            or told.get("stream_output") is True,
        )


async def facts(endpoint: Endpoint) -> SGLangFacts:
    """Ask a server for its facts. Raises EndpointError if it is no SGLang."""
    for path in PATHS:
        status, body = await endpoint.get(path)
        if status in (401, 403):
            raise EndpointError("EngineFailed", f"it refuses weftline's key ({status})")
        if status == 200:
            try:
                told = json.loads(body)
            except (ValueError, RecursionError):
                break
            if isinstance(told, dict):
                return SGLangFacts.of(told)
    raise EndpointError("EngineFailed", f"it is no SGLang: it has no {PATHS[1]}")


def _count(told: Mapping[str, Any], name: str) -> int | None:
    value = told.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
