"""Chooses which copies vLLM's connector drops from host memory: those that are read last.

The class runs in vLLM's own process, by its settings `eviction_policy` and
`cache_policy_module_path`. A request names its context in its `kv_transfer_params`. The scheduler
of ours tells when contexts are read.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from vllm.v1.kv_offload.base import OffloadKey, ReqContext
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, ChunkStatus

from weftline_engine.api import Retention
from weftline_engine.bookkeeping.kv.read_order import ReadOrder

CONTEXT, APPLICATION = "weftline_context", "weftline_application"


class NextUsePolicy(CachePolicy):
    """vLLM's copies, in the order of their next read. What vLLM calls a chunk is a block, or some
    blocks that are copied together."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._chunks: dict[OffloadKey, ChunkStatus] = {}
        self._order: ReadOrder[OffloadKey] = ReadOrder()

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        """`CachePolicy.get`"""
        return self._chunks.get(key)

    def insert(self, key: OffloadKey, chunk: ChunkStatus) -> None:
        """`CachePolicy.insert`"""
        self._chunks[key] = chunk
        self._order.add(key, time.monotonic())

    def remove(self, key: OffloadKey) -> None:
        """`CachePolicy.remove`"""
        del self._chunks[key]
        self._order.remove(key)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """`CachePolicy.touch`"""
        self._order.use(list(keys), time.monotonic())

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: set[OffloadKey],
        reused_keys: set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        """`CachePolicy.on_request_finished`

        The groups have what the request has copied or loaded. Its context has also the blocks that
        the device had, so the keys are those whose places vLLM has noted.
        """
        places = req_context._offload_key_positions
        keys = sorted(places, key=places.__getitem__)
        self._order.use(keys, time.monotonic())
        params = req_context.kv_transfer_params or {}
        context, application = params.get(CONTEXT), params.get(APPLICATION)
        if isinstance(context, str):
            self._order.leave(context, application or "", keys)

    def evict(
        self, n: int, protected: set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        """`CachePolicy.evict`"""
        free = (
            (key, chunk)
            for key in self._order.first(time.monotonic())
            if (chunk := self._chunks[key]).ref_cnt == 0 and key not in protected
        )
        found = list(islice(free, n))
        if len(found) < n:
            return None
        for key, _ in found:
            self.remove(key)
        return found

    def clear(self) -> None:
        """`CachePolicy.clear`"""
        self._chunks.clear()
        self._order = ReadOrder()

    def advise(self, context: str, pause_s: float) -> None:
        """A context will be read in so many seconds."""
        self._order.expect(context, time.monotonic() + pause_s)

    def retain(self, context: str, retention: Retention) -> None:
        """A context that is to be kept on the device is read soon. The copy of one that is to be
        swapped is kept, and nobody reads that of one that is dropped."""
        if retention is Retention.KEEP:
            self._order.expect(context, time.monotonic())
        elif retention is Retention.SWAP:
            self._order.keep(context, time.monotonic())
        elif retention is Retention.DROP:
            self._order.drop(context)

    def free(self, context: str, *, may_return: bool) -> None:
        """Nobody will read the context again, as far as the server knows."""
        self._order.free(context, may_return=may_return)


def policy_of(connector: Any) -> NextUsePolicy | None:
    """The policy of vLLM's connector; None where it drops by another one, or there is none."""
    manager = getattr(getattr(connector, "connector_scheduler", None), "manager", None)
    found = getattr(manager, "_policy", None)
    return found if isinstance(found, NextUsePolicy) else None
