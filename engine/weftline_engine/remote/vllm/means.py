"""What weftline uses of vLLM, in each of the versions that it was checked with.

docs/engines.md shows this table, and a test compares both. Another test looks the names up in the
sources of each vLLM that is installed.
"""

from __future__ import annotations

from dataclasses import dataclass

# The last three versions for CPUs, the newest first. `make install-bench` installs the first two.
CHECKED = ("0.32", "0.31", "0.30")


@dataclass(frozen=True, slots=True)
class VLLMMeans:
    """Something that vLLM has, and who switches it on.

    `names` are vLLM's own: an option begins with two dashes, the others are fields of a request or
    headers. The uses are those with our scheduler inside, of a child with vLLM's own scheduler, and
    of a vLLM that runs already.
    """

    title: str
    names: tuple[str, ...]
    inside: str
    child: str
    connected: str


MEANS = (
    VLLMMeans(
        "prefix caching",
        ("--enable-prefix-caching",),
        "vLLM's own",
        "vLLM's own",
        "as it was started",
    ),
    VLLMMeans(
        "chunked prefill",
        ("--enable-chunked-prefill",),
        "on GPUs within the ITL limit",
        "vLLM's own",
        "as it was started",
    ),
    VLLMMeans(
        "cascade attention",
        ("--disable-cascade-attn",),
        "as in vLLM: off",
        "as in vLLM: off",
        "as it was started",
    ),
    VLLMMeans(
        "the order of what waits",
        ("--scheduler-cls", "--scheduling-policy", "priority"),
        "ours, changed while it waits",
        "`priority`",
        "`priority`, if switched on",
    ),
    VLLMMeans(
        "planning a step ahead (async scheduling)",
        ("--async-scheduling",),
        "yes",
        "yes",
        "as it was started",
    ),
    VLLMMeans(
        "`cache_salt`, structured outputs, ids in and out",
        ("cache_salt", "structured_outputs", "return_token_ids"),
        "yes",
        "yes",
        "yes",
    ),
    VLLMMeans("`stream_interval`", ("stream_interval",), "yes", "yes", "yes"),
    VLLMMeans("the session, in `X-Session-ID`", ("X-Session-ID",), "yes", "yes", "yes"),
    VLLMMeans(
        "times of an answer's phases",
        ("--enable-per-request-metrics",),
        "yes",
        "no",
        "`--enable-per-request-metrics`",
    ),
    VLLMMeans(
        "cached tokens of each prompt",
        ("--enable-prompt-tokens-details",),
        "yes",
        "yes",
        "`--enable-prompt-tokens-details`",
    ),
    VLLMMeans(
        "how full the cache is",
        ("kv_cache_usage_perc",),
        "our notes",
        "`/metrics`",
        "`/metrics`",
    ),
    VLLMMeans(
        "KV events, which feed the prefix index",
        ("--kv-events-config",),
        "yes",
        "yes",
        "`--kv-events ADDRESS`",
    ),
    VLLMMeans(
        "its connector to host memory",
        ("--kv-transfer-config", "cpu_bytes_to_use", "self_describing_kv_events"),
        "`--host-kv-gib`",
        "`--host-kv-gib`",
        "as it was started",
    ),
    VLLMMeans(
        "what full host memory drops first",
        ("eviction_policy", "cache_policy_module_path"),
        "what is read last",
        "LRU",
        "as it was started",
    ),
    VLLMMeans(
        "`kv_transfer_params` of a request",
        ("kv_transfer_params", "max_offload_tokens"),
        "its context, `max_offload_tokens`",
        "no",
        "no",
    ),
    VLLMMeans(
        "data-parallel ranks",
        ("--data-parallel-size", "X-data-parallel-rank"),
        "one",
        "one",
        "`--data-parallel-rank`, an engine for each",
    ),
)
