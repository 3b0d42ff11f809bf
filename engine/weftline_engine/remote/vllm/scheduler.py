"""weftline's scheduler inside vLLM, for its option `--scheduler-cls`.

The scheduler runs in vLLM's own process and interpreter, on vLLM's scheduler, and changes five
things:

- the order of the queue is the server's, and follows its hints while requests wait;
- a request that would slow a reader beyond its bound waits, as in our own engine;
- contexts that the server keeps, for a next call or behind a tool call, stay in the KV cache;
- contexts that nobody will read are evicted first;
- what a model keeps at few places, a state (`state_stops`) or windows, is kept where prompts part.

On a GPU it changes a sixth: a step computes as many prompt tokens as let it end within the limit on
the time between two tokens of the answers beside them (`step_seconds`).

With vLLM's connector to host memory it changes two more: contexts are copied, and copied back,
where that takes no longer than computing them again (`reloads`), and host memory keeps what is read
soonest (`host_policy`).

The server's hints come over a unix socket whose path is in WEFTLINE_NOTES. vLLM does not promise
its scheduler's interface, so other versions of vLLM than those in `versions` are refused.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from functools import partial
from typing import Any, Self

from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager
from vllm.v1.kv_cache_interface import MambaSpec, SlidingWindowSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.version import __version__

from weftline_engine.api import PROMPT_ITL_S, Return
from weftline_engine.bookkeeping.schedule.step_seconds import ItlLimit, PromptSeconds, attended_by
from weftline_engine.remote.vllm.call_ledger import CallLedger
from weftline_engine.remote.vllm.freed_returns import FreedReturns
from weftline_engine.remote.vllm.host_policy import APPLICATION, CONTEXT, policy_of
from weftline_engine.remote.vllm.pool_contexts import PrefixContexts
from weftline_engine.remote.vllm.reloads import ReloadCosts
from weftline_engine.remote.vllm.state_stops import MOST_STOPS, StateStops
from weftline_engine.remote.vllm.step_meter import PlannedWork, StepMeter
from weftline_engine.remote.vllm.versions import HOST_CONNECTOR, NOTES, is_known, refusal
from weftline_engine.transport import wire

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


# How often empty blocks are counted, in seconds, and at most so many. To count them takes 0.1 ms.
SETTLE_S, SPARE_BLOCKS = 0.1, 1024


class WeftlineScheduler(Scheduler):
    """vLLM's scheduler in the server's order, with the server's retention.

    vLLM names one class before it knows whether it schedules asynchronously. On a GPU it does by
    default, and on a CPU never. So this class creates the kind that the configuration asks for.
    """

    max_num_scheduled_tokens: int  # vLLM's, and changed for one step

    def __new__(cls, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> Self:
        is_async = vllm_config.scheduler_config.async_scheduling
        return super().__new__(AsyncWeftlineScheduler if is_async else cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._notes = HintReader(os.environ.get(NOTES))
        self._ledger = CallLedger()
        copies = self.connector is not None
        self._contexts = PrefixContexts(
            self.kv_cache_manager.block_pool,
            copies=copies,
            spare=min(SPARE_BLOCKS, self.kv_cache_config.num_blocks // 8),
        )
        self._settles_at = 0.0
        self._copies = policy_of(self.connector)
        self._returns = FreedReturns()
        self._stops = StateStops(self.cache_config.block_size)
        for manager in self.kv_cache_manager.coordinator.single_type_managers:
            if isinstance(manager, SlidingWindowManager):
                manager.cache_blocks = partial(self._cache_windows, manager.cache_blocks)
        self._steps = StepMeter()
        # On a CPU a step reads the weights for as long as 60 prompt tokens take, so short steps
        # cost more than they give: six chains took 61 s with them, and 35 s without.
        self._itl_s = None if current_platform.is_cpu() else PROMPT_ITL_S
        self._reloads: ReloadCosts | None = None
        transfer = self.vllm_config.kv_transfer_config
        if transfer is not None and transfer.kv_connector == HOST_CONNECTOR:
            self._reloads = ReloadCosts(self._steps)
            self._loadable = self.connector.get_num_new_matched_tokens
            # vLLM asks the connector for each request that may start. Here the costs decide, too.
            self.connector.get_num_new_matched_tokens = self._worth_loading

    def add_request(self, request: Request) -> None:
        """Add a request to the queue, with its op's hints."""
        if request.request_id not in self.requests:
            op = _extra(request, "weftline_op")
            tokens = request.all_token_ids
            self._ledger.add(request.request_id, op, tokens, request.priority, time.monotonic())
            self._stops.add(request.request_id, self._borders(request))
            self._name_copies(request)
            self._returns.come(request.block_hashes)
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Plan a step, after applying the verbs that have come since the last one."""
        self._hear()
        if (now := time.monotonic()) >= self._settles_at:
            self._contexts.settle()
            self._settles_at = now + SETTLE_S
        self._put_in_order()
        self._make_room()
        held = self._hold_back()
        whole = self.max_num_scheduled_tokens
        self.max_num_scheduled_tokens = self._step_tokens(whole)
        output = super().schedule(*args, **kwargs)
        self.max_num_scheduled_tokens = whole
        for request in held:
            self.waiting.add_request(request)
        self._steps.planned(self._work(output), time.monotonic())
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> Any:
        """Take over what a step has computed, and what the connector has loaded meanwhile."""
        now = time.monotonic()
        self._steps.computed(now)
        if self._reloads is not None:
            transferred = model_runner_output.kv_connector_output
            for request in (transferred and transferred.finished_recving) or ():
                self._reloads.loaded(request, now)
        return super().update_from_output(scheduler_output, model_runner_output)

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        """Empty the cache. All contexts are unpinned first, because pinned blocks prevent it."""
        self._contexts.unpin_all()
        return super().reset_prefix_cache(*args, **kwargs)

    def _free_blocks(self, request: Request) -> None:
        """Called by vLLM for a request that has ended."""
        context, pool = _extra(request, CONTEXT), self.kv_cache_manager.block_pool
        groups = self.kv_cache_manager.get_blocks(request.request_id).blocks
        blocks = [one for group in groups for one in group if one.pool is pool]
        own = {one.block_id for one in blocks}
        tails = [one for one in self._last_tails(request) if one.block_id not in own]
        pool.touch(tails)
        if context is not None:
            application, common = _extra(request, APPLICATION) or "", self._common_windows(request)
            self._contexts.leave(context, application, blocks + tails, common)
            self._note_end(request, context)
        self._ledger.end(request.request_id)
        self._stops.end(request.request_id)
        if self._reloads is not None:
            self._reloads.ended(request.request_id)
        super()._free_blocks(request)
        pool.free_blocks(tails)  # last, because the other blocks are of no use without them

    def _note_end(self, request: Request, context: str) -> None:
        """Note the last whole block of a prompt, by which a prompt that begins with it is known."""
        end = (request.num_prompt_tokens - 1) // self.hash_block_size
        if end and (kind := _extra(request, "weftline_returns")) in set(Return):
            self._returns.leave(context, request.block_hashes[end - 1], Return(kind))

    def _borders(self, request: Request) -> Any:
        """The borders that our server has sent, and the last one that a next prompt may go on
        behind: vLLM 0.31 keeps no state there, if the prompt ends with a block."""
        sent = _sent(request).get("weftline_borders")
        return [request.num_prompt_tokens - 1, *sent] if isinstance(sent, list) else sent

    def _cache_windows(
        self, cache: Any, request: Request, *args: Any, replay_boundaries: Any, **more: Any
    ) -> None:
        """Called by vLLM for the blocks of a part of a prompt in layers with windows: `cache` them
        where a next prompt may go on. vLLM knows one such place, the last, and one more where it
        has seen a prompt part: then that prompt has computed all again."""
        ends = [*replay_boundaries, *_sent_borders(request)]
        cache(request, *args, replay_boundaries=ends, **more)

    def _common_windows(self, request: Request) -> set[Any]:
        """The hashes of the blocks that other prompts go on behind, where they part from this one.
        The next turns of an agent do not have them, unlike all blocks of other layers."""
        return {
            block.block_hash
            for number, group in enumerate(self.kv_cache_config.kv_cache_groups)
            if isinstance(group.kv_cache_spec, SlidingWindowSpec)
            for end in _sent_borders(request)
            for block in self._window(request, number, group.kv_cache_spec, end)
        }

    def _window(
        self, request: Request, number: int, spec: SlidingWindowSpec, end: int
    ) -> list[Any]:
        """The blocks of a group of layers that a prompt needs which goes on behind so many tokens,
        as far as they are there."""
        last = end // self.block_size * self.block_size // spec.block_size
        start, step = last - _blocks(spec.sliding_window - 1, spec), self.hash_block_size
        names = request.block_hashes[spec.block_size // step - 1 :: spec.block_size // step]
        found, pool = list[Any](), self.kv_cache_manager.block_pool
        for name in names[max(0, start) : last]:
            found += pool.get_cached_block(name, [number]) or []
        return found

    def _last_tails(self, request: Request) -> list[Any]:
        """The blocks that a next prompt needs and that vLLM has freed while it generated, so that
        it would evict them before the other keys and values: of each group of layers with a state
        the last one, and of each with windows the one at the end of the prompt."""
        found, pool = list[Any](), self.kv_cache_manager.block_pool
        for number, group in enumerate(self.kv_cache_config.kv_cache_groups):
            match group.kv_cache_spec:
                case MambaSpec() if self.need_mamba_block_aligned_split:
                    cached = (
                        pool.get_cached_block(one, [number]) for one in request.block_hashes[::-1]
                    )
                    found += next((one for one in cached if one), [])
                case SlidingWindowSpec() as spec:
                    found += self._window(request, number, spec, request.num_prompt_tokens - 1)
        return found

    def _mamba_block_aligned_split(
        self, request: Request, tokens: int, local: int = 0, external: int = 0
    ) -> int:
        """Called by vLLM for each part of a prompt, if the model has a state: how many `tokens` it
        computes behind those that the request has, and those that were found for it."""
        start = request.num_computed_tokens + local + external
        boundary = request.shared_prefix_boundary
        request.shared_prefix_boundary = self._stops.next(request.request_id, start, boundary)
        return super()._mamba_block_aligned_split(request, tokens, local, external)

    def _worth_loading(self, request: Request, computed: int) -> tuple[int | None, bool]:
        """The tokens to load for a request behind its `computed` ones, and whether it waits for
        them. The connector answers None if it does not know yet."""
        assert self._reloads is not None, "without its connector nobody asks"
        tokens, waits = self._loadable(request, computed)
        if not tokens:
            return tokens, waits
        if not self._reloads.pays(request.request_id, tokens, len(self.running)):
            return 0, False
        self._reloads.begun(request.request_id, tokens, time.monotonic())
        return tokens, waits

    def _name_copies(self, request: Request) -> None:
        """Tell the connector whose copies these are. Of a request that is too short to be worth a
        load it copies nothing."""
        if self._reloads is None:
            return
        params: dict[str, Any] = {one: _extra(request, one) for one in (CONTEXT, APPLICATION)}
        longest = request.num_prompt_tokens + request.max_tokens
        if longest < self._reloads.least(len(self.running)):
            params["max_offload_tokens"] = 0
        request.kv_transfer_params = {**params, **(request.kv_transfer_params or {})}

    def _step_tokens(self, whole: int) -> int:
        """The most tokens of the next step, of `whole`: so many that prompts leave the time between
        two tokens of an answer within the limit. Those that decode get theirs first."""
        if self._itl_s is None or not self.scheduler_config.enable_chunked_prefill:
            return whole
        decoding = [one for one in self.running if not one.is_prefill_chunk]
        prompts = [one for one in self.running if one.is_prefill_chunk]
        read = any(self._ledger.is_read(one.request_id) for one in decoding)
        if not read or not (prompts or self.waiting) or (cost := self._steps.cost) is None:
            return whole
        if prompts:
            behind = min(prompts, key=lambda one: one.priority).num_computed_tokens
        else:  # how much of it is in the cache is known when it runs: as if all were
            behind = self.waiting.peek_request().num_tokens
        held = sum(one.num_computed_tokens for one in decoding)
        room = PromptSeconds(ItlLimit(cost, self._itl_s), len(decoding), held)
        decoded = sum(
            one.num_tokens_with_spec + one.num_output_placeholders - one.num_computed_tokens
            for one in decoding
        )
        # A model with a state computes whole blocks.
        least = min(whole, decoded + self.cache_config.block_size)
        self.running.sort(key=lambda one: (one.is_prefill_chunk, one.priority))
        return max(least, min(whole, decoded + room.allow(behind, whole)))

    def _work(self, output: SchedulerOutput) -> PlannedWork:
        """What a planned step computes. vLLM counts its tokens as computed already."""
        prompt = attended = decoding = held = 0
        for name, tokens in output.num_scheduled_tokens.items():
            request = self.requests[name]
            before = request.num_computed_tokens - tokens
            held += before + tokens
            if before < request.num_prompt_tokens:
                prompt += tokens
                attended += attended_by(tokens, before)
            else:
                decoding += 1
        return PlannedWork(prompt, attended, decoding, held)

    def _hear(self) -> None:
        keepers = [one for one in (self._contexts, self._copies) if one is not None]
        for verb in self._notes.heard():
            match verb:
                case wire.Update(op, hints):
                    self._ledger.hint(op, hints)
                    if hints.expected_pause is not None:
                        for one in keepers:
                            one.advise(op, hints.expected_pause)
                case wire.Retain(context, retention):
                    for one in keepers:
                        one.retain(context, retention)
                case wire.Free(context):
                    may_return = self._returns.free(context)
                    for one in keepers:
                        one.free(context, may_return=may_return)

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
        """Unpin contexts if the next request waits only for their blocks. So it cannot starve.

        A request whose keys and values a connector has loaded comes first, and has blocks.
        """
        queue = self.kv_holding_waiting or self.waiting
        if queue and not self.running:
            first = queue.peek_request()
            tokens = first.num_tokens - first.num_computed_tokens
            managers = self.kv_cache_manager.coordinator.single_type_managers
            self._contexts.give_way(1 + sum(_most_blocks(one, tokens) for one in managers))

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


class AsyncWeftlineScheduler(WeftlineScheduler, AsyncScheduler):
    """The same on vLLM's asynchronous scheduler, which plans a step while the last one computes.

    The other class would leave each call out of every second step there, because it counts no token
    that is still being computed.
    """


def _blocks(tokens: int, spec: Any) -> int:
    """The whole blocks that so many tokens of a group of layers fill."""
    return -(-tokens // int(spec.block_size))


def _most_blocks(manager: Any, tokens: int) -> int:
    """The most blocks that so many tokens of a prompt take in a group of layers."""
    spec, most = manager.kv_cache_spec, manager.max_admission_blocks_per_request
    if isinstance(spec, MambaSpec):
        return 2  # a state, and the one before it
    blocks = _blocks(tokens, spec) + 1
    return blocks if most is None else min(blocks, int(most))


def _sent_borders(request: Request) -> list[int]:
    """The borders that our server has sent, which are many only if somebody else did."""
    sent = _sent(request).get("weftline_borders")
    ends = sent[:MOST_STOPS] if isinstance(sent, list) else []
    return [one for one in ends if isinstance(one, int) and one > 0]


def _extra(request: Request, name: str) -> str | None:
    """A field that weftline has sent with the request."""
    found = _sent(request).get(name)
    return found if isinstance(found, str) else None


def _sent(request: Request) -> dict[str, Any]:
    """The fields that the request has beside vLLM's own."""
    return (request.sampling_params and request.sampling_params.extra_args) or {}
