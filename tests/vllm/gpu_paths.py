"""A story of plans.py: what our scheduler plans where a GPU's vLLM differs.

The CUDA graphs of its steps and of vLLM's own, what a worker process would get, the steps of
requests whose keys and values come from host memory, what full host memory drops, and the steps of
a prompt beside an answer.
"""

from __future__ import annotations

import pickle
from collections import deque
from typing import Any

from vllm import SamplingParams
from vllm.config import CUDAGraphMode, KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from tests.vllm.asynchronous_plan import BLOCK, computed, created, request
from weftline_engine.api import Hints, Retention
from weftline_engine.bookkeeping.schedule.step_seconds import StepSeconds
from weftline_engine.remote.vllm.config import offloading
from weftline_engine.remote.vllm.reloads import ReloadCosts
from weftline_engine.remote.vllm.scheduler import WeftlineScheduler
from weftline_engine.remote.vllm.step_meter import PlannedWork, StepMeter
from weftline_engine.remote.vllm.versions import SCHEDULER
from weftline_engine.transport import wire

ANSWERS = (2, 3, 4, 5, 6)  # tokens of five requests: batches of five, four, three, two and one
FILE_TOKENS = 4 * BLOCK
MOST_STEPS = 12
GIB = 1 << 30
PAGE = 4096  # bytes of host memory that a block takes at least


def planned(scheduler: Scheduler) -> list[SchedulerOutput]:
    """Plan all steps, each before the last one's tokens are there."""
    steps: list[SchedulerOutput] = []
    pending: deque[SchedulerOutput] = deque()
    while scheduler.has_unfinished_requests():
        steps.append(scheduler.schedule())
        pending.append(steps[-1])
        if len(pending) == 2:
            first = pending.popleft()
            scheduler.update_from_output(first, computed(first))
    return steps


def graphs(model: str, scheduler_cls: str | None) -> list[tuple[int, str, int]]:
    """For each step its tokens, the kind of its CUDA graph, and the tokens of that graph."""
    scheduler = created(model, places=len(ANSWERS), scheduler_cls=scheduler_cls)
    config = scheduler.vllm_config
    config.model_config.enforce_eager = False
    config.compilation_config.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
    config.compilation_config.cudagraph_capture_sizes = None
    config.compilation_config.max_cudagraph_capture_size = None
    config._set_cudagraph_sizes()  # as on a GPU; on a CPU vLLM has no sizes
    dispatcher = CudagraphDispatcher(config)
    dispatcher.initialize_cudagraph_keys(CUDAGraphMode.FULL_DECODE_ONLY)
    for number, answer in enumerate(ANSWERS):
        scheduler.add_request(request(f"r{number}", 0, answer))
    found = []
    for step in planned(scheduler):
        counts = step.num_scheduled_tokens.values()
        if counts:
            tokens = sum(counts)
            mode, graph = dispatcher.dispatch(tokens, uniform_decode=max(counts) == 1)
            found.append((tokens, mode.name, graph.num_tokens))
    return found


def crossing(model: str) -> dict[str, Any]:
    """Whether a planned step crosses to a worker process, and names nothing of ours there."""
    scheduler = created(model)
    scheduler.add_request(request("one", 0))
    step = scheduler.schedule()
    frame = pickle.dumps(step)
    again = pickle.loads(frame)  # noqa: S301 - what this process has pickled, as vLLM does
    same = again.num_scheduled_tokens == step.num_scheduled_tokens
    return {"same": same, "ours": b"weftline" in frame}


class Offloading:
    """Our scheduler with vLLM's connector to host memory, and a worker that copies at once."""

    def __init__(
        self, model: str, blocks: int, *, host_blocks: int = 4096, ours: bool = True
    ) -> None:
        gib = host_blocks * PAGE / GIB
        transfer = KVTransferConfig(**offloading(gib, ours=ours))
        scheduler = created(model, blocks=blocks, transfer=transfer)
        assert isinstance(scheduler, WeftlineScheduler)
        self.scheduler = scheduler
        init_none_hash(sha256)
        self.stored = 0  # jobs that copy blocks to host memory
        self._hasher = get_request_block_hasher(BLOCK, sha256)

    def add(self, name: str, tokens: list[int]) -> None:
        """Add a request for two tokens, whose context has its name."""
        extra = {"weftline_context": name, "weftline_application": name, "weftline_op": name}
        sampling = SamplingParams(max_tokens=2, ignore_eos=True, extra_args=extra)
        self.scheduler.add_request(Request(name, tokens, sampling, None, block_hasher=self._hasher))

    def tell(self, *verbs: wire.Verb) -> None:
        """The server's verbs, which the scheduler hears before the next step."""
        self.scheduler._notes._verbs.extend(verbs)

    def run(self) -> list[tuple[dict[str, int], int]]:
        """Plan and compute until nothing is left: the tokens of each step, and its loads."""
        steps = []
        while self.scheduler.has_unfinished_requests() and len(steps) < MOST_STEPS:
            steps.append(self._step())
        self._step()  # what has ended is stored in the step after
        return steps

    def loadable(self, tokens: list[int]) -> int:
        """How many tokens of this prompt are in host memory."""
        connector = self.scheduler.connector.connector_scheduler
        asked = Request("asked", tokens, SamplingParams(), None, block_hasher=self._hasher)
        connector.on_new_request(asked)
        return int(connector.get_num_new_matched_tokens(asked, 0)[0])

    def _step(self) -> tuple[dict[str, int], int]:
        step = self.scheduler.schedule()
        jobs = step.kv_connector_metadata
        done = OffloadingWorkerMetadata()
        for number in (*jobs.load_jobs, *jobs.store_jobs):
            done.mark_completed(number)
        loaded = {job.req_id for job in jobs.load_jobs.values()}
        self.stored += len(jobs.store_jobs)
        output = KVConnectorOutput(finished_recving=loaded, kv_connector_worker_meta=done)
        self.scheduler.update_from_output(step, computed(step, output))
        return dict(step.num_scheduled_tokens), len(loaded)


def reloaded(model: str) -> list[tuple[dict[str, int], int]]:
    """A file was read, and its blocks are gone from the device. The next request begins with it."""
    story = Offloading(model, 40)
    file = list(range(100, 100 + FILE_TOKENS))
    story.add("first", file)
    story.run()
    assert story.scheduler.reset_prefix_cache()
    story.add("second", [*file, *range(8)])
    return story.run()


def dropped(model: str, *, ours: bool) -> dict[str, int]:
    """Contexts of four blocks each, and host memory for eleven. The first agent comes back soon,
    the second in ten minutes, and the third has ended when the fourth one is copied.

    The tokens of each that could be loaded afterwards.
    """
    story = Offloading(model, 40, host_blocks=11, ours=ours)
    files = {name: list(range(at, at + FILE_TOKENS)) for at, name in enumerate("abcd", 1)}
    for name, pause_s in (("a", 1.0), ("b", 600.0), ("c", 2.0), ("d", 3.0)):
        story.add(name, files[name])
        story.run()
        story.tell(wire.Update(name, Hints(expected_pause=pause_s)))
        if name == "c":
            story.tell(wire.Free("c"))
    return {name: story.loadable([*file, 0]) for name, file in files.items()}


def crowded(model: str) -> tuple[list[tuple[dict[str, int], int]], int]:
    """The same where contexts that are kept have all blocks but those that the load takes."""
    story = Offloading(model, 14)  # vLLM keeps one for itself
    file = list(range(100, 100 + FILE_TOKENS))
    story.add("first", file)
    story.run()
    assert story.scheduler.reset_prefix_cache()
    contexts = story.scheduler._contexts
    for name, begin in (("kept", 1000), ("kept too", 2000)):
        contexts.retain(name, Retention.KEEP)
        story.add(name, list(range(begin, begin + FILE_TOKENS)))
        story.run()
    assert contexts.pinned == 2
    story.add("second", [*file, *range(3 * BLOCK)])
    return story.run(), contexts.pinned


def weighed(model: str, load_s: float) -> tuple[list[tuple[dict[str, int], int]], int, int]:
    """The same where 64 tokens were computed in a second, and loaded in so many seconds.

    The result has the steps, and the jobs that store before and after this was known.
    """
    story = Offloading(model, 40)
    file = list(range(100, 100 + FILE_TOKENS))
    story.add("first", file)
    story.run()
    assert story.scheduler.reset_prefix_cache()
    stored = story.stored
    steps = StepMeter()
    steps.planned(PlannedWork(FILE_TOKENS), 0.0)
    steps.computed(1.0)
    story.scheduler._reloads = costs = ReloadCosts(steps)
    costs.begun("first", FILE_TOKENS, 0.0)
    costs.loaded("first", load_s)
    story.add("second", [*file, *range(2 * BLOCK)])
    return story.run(), stored, story.stored - stored


class KnownSteps(StepMeter):
    """Steps of 10 ms, and of 1 ms more for each prompt token."""

    @property
    def cost(self) -> StepSeconds:
        return StepSeconds(step_s=0.01, fill_s=0.001)


def beside(model: str, itl_s: float | None) -> list[dict[str, int]]:
    """The steps from the one on in which a prompt of 600 tokens comes to an answer of nine."""
    scheduler = created(model)
    assert isinstance(scheduler, WeftlineScheduler)
    scheduler._itl_s, scheduler._steps = itl_s, KnownSteps()
    scheduler.add_request(request("answer", 0, 9))
    steps: list[dict[str, int]] = []
    while scheduler.has_unfinished_requests():
        step = scheduler.schedule()
        output = computed(step)
        for place, name in enumerate(output.req_ids):
            if scheduler.requests[name].is_prefill_chunk:
                output.sampled_token_ids[place] = []
        steps.append(dict(step.num_scheduled_tokens))
        scheduler.update_from_output(step, output)
        if len(steps) == 2:
            sampling = SamplingParams(max_tokens=1, ignore_eos=True)
            scheduler.add_request(Request("prompt", list(range(600)), sampling, None))
    return steps[2:]


def on_a_gpu(model: str) -> dict[str, Any]:
    """All of it by name."""
    return {
        "graphs": graphs(model, SCHEDULER),
        "vllm's": graphs(model, None),
        "crossing": crossing(model),
        "reloaded": reloaded(model),
        "crowded": crowded(model),
        "dropped": {"ours": dropped(model, ours=True), "LRU": dropped(model, ours=False)},
        "beside": {str(itl_s): beside(model, itl_s) for itl_s in (None, 0.2)},
        "fast": weighed(model, 0.1),
        "slow": weighed(model, 9.0),
    }
