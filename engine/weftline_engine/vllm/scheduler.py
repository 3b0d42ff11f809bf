"""weftline's scheduler inside vLLM, for its option `--scheduler-cls`.

It runs in vLLM's own process and interpreter, on vLLM's scheduler, and changes four things:

- the order of the queue is the server's, and follows its hints while requests wait;
- a request that would slow a reader beyond its bound waits, as in our own engine;
- contexts that the server keeps, for a next call or behind a tool call, stay in the KV cache;
- contexts that nobody will read are evicted first.

The server's hints come over a unix socket whose path is in WEFTLINE_NOTES. vLLM does not promise
its scheduler's interface, so other versions of vLLM than those in `versions` are refused.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus
from vllm.version import __version__

from weftline_engine.transport import wire
from weftline_engine.vllm.contexts import PrefixContexts
from weftline_engine.vllm.ledger import CallLedger
from weftline_engine.vllm.versions import NOTES, is_known, refusal

if not is_known(__version__):
    raise ImportError(refusal(__version__))


class HintReader:
    """The server's verbs, which a thread reads. Without a path there are none."""

    def __init__(self, path: str | None) -> None:
        self._verbs: deque[wire.Message] = deque()
        if path is not None:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(path)
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def heard(self) -> list[wire.Message]:
        """Return the verbs that have come since the last call."""
        return [self._verbs.popleft() for _ in range(len(self._verbs))]

    def _read(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as file:
            while len(header := file.read(wire.HEADER_BYTES)) == wire.HEADER_BYTES:
                self._verbs.extend(wire.decode(file.read(wire.length(header))))


class WeftlineScheduler(Scheduler):
    """vLLM's scheduler in the server's order, with the server's retention."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._notes = HintReader(os.environ.get(NOTES))
        self._ledger = CallLedger()
        self._contexts = PrefixContexts(self.kv_cache_manager.block_pool)

    def add_request(self, request: Request) -> None:
        """Add a request to the queue, with its op's hints."""
        if request.request_id not in self.requests:
            op = _extra(request, "weftline_op")
            tokens = request.all_token_ids
            self._ledger.add(request.request_id, op, tokens, request.priority, time.monotonic())
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Plan a step, after applying the verbs that have come since the last one."""
        self._hear()
        self._put_in_order()
        self._make_room()
        held = self._hold_back()
        output = super().schedule(*args, **kwargs)
        for request in held:
            self.waiting.add_request(request)
        return output

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        """Empty the cache. All contexts are unpinned first, because pinned blocks prevent it."""
        self._contexts.unpin_all()
        return super().reset_prefix_cache(*args, **kwargs)

    def _free_blocks(self, request: Request) -> None:
        """Called by vLLM for a request that has ended."""
        context = _extra(request, "weftline_context")
        if context is not None:
            pool = self.kv_cache_manager.block_pool
            groups = self.kv_cache_manager.get_blocks(request.request_id).blocks
            blocks = (one for group in groups for one in group if one.pool is pool)
            self._contexts.leave(context, _extra(request, "weftline_application") or "", blocks)
        self._ledger.end(request.request_id)
        super()._free_blocks(request)

    def _hear(self) -> None:
        for verb in self._notes.heard():
            match verb:
                case wire.Update(op, hints):
                    self._ledger.hint(op, hints)
                    self._contexts.advise(op, hints.expected_pause)
                case wire.Retain(context, retention):
                    self._contexts.retain(context, retention)
                case wire.Free(context):
                    self._contexts.free(context)

    def _put_in_order(self) -> None:
        """Give each request its place as vLLM's priority, and sort the queues by it anew."""
        order = self._ledger.order()
        if order is None:
            return
        for place, name in enumerate(order):
            if request := self.requests.get(name):
                request.priority = place
        for queue in (self.waiting, self.kv_holding_waiting):
            requests = list(queue)
            queue.remove_requests(requests)
            for request in requests:
                queue.add_request(request)

    def _make_room(self) -> None:
        """Unpin contexts if the next request waits only for their blocks. So it cannot starve."""
        if self.waiting and not self.running:
            first = self.waiting.peek_request()
            self._contexts.give_way(first.num_tokens // self.hash_block_size + 2)

    def _hold_back(self) -> list[Request]:
        """Remove the requests from the queue that may not join the next step."""
        running = [one.request_id for one in self.running]
        waiting = {one.request_id: one for one in self.waiting}
        names = self._ledger.held(running, waiting, time.monotonic())
        held = [
            waiting[name] for name in names if waiting[name].status is not RequestStatus.PREEMPTED
        ]
        if held:
            self.waiting.remove_requests(held)
        return held


def _extra(request: Request, name: str) -> str | None:
    """A field that weftline has sent with the request."""
    extra = request.sampling_params.extra_args if request.sampling_params else None
    found = (extra or {}).get(name)
    return found if isinstance(found, str) else None
