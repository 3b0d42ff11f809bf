"""The parts of the benchmark harness, with numbers that a reader can check by hand."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.utils import get_tokenizer

from bench.harness import __main__ as options
from bench.harness import fleet as fleets
from bench.harness import machine, probe, results, resume, servers
from bench.harness.__main__ import main as harness
from bench.harness.fleet import Fleet
from bench.harness.instructions import held_python
from bench.harness.metrics import (
    apps_per_minute,
    mean_seconds,
    ms_per_token,
    percentile,
    repeated_share,
    sign_test,
    spread,
)
from bench.harness.model import TEMPLATE, with_template
from bench.harness.results import rows
from bench.harness.runs import Run
from bench.harness.servers import (
    Kind,
    Server,
    ServerSpec,
    Setup,
    command,
    environment,
    running,
)
from bench.harness.shape import random_model
from bench.harness.stage import App, Call, Stage
from bench.harness.systems import SYSTEMS
from bench.harness.texts import Texts, words
from bench.harness.workload import FULL, QUICK, TINY, Point, Workload, load, names
from bench.workloads import many_agents, tool_mix
from bench.workloads.rag import of_one_length
from tests.random_models import SHAPES
from weftline.delay import proxy
from weftline.errors import EngineUnavailable, InvalidRequest
from weftline_engine.own.embedded.model.families import read_config
from weftline_server.prompt.prompter import _compiled


def app(kind: str, start: float, seconds: float, output: int = 10, error: str | None = None) -> App:
    """An application with one call."""
    return App(kind, start, seconds, "", error, [Call("c", start, seconds, 5, output)])


def test_the_metrics_of_a_run() -> None:
    """A failed application counts in no metric."""
    apps = [app("a", 0, 1), app("a", 1, 3), app("b", 0, 6), app("a", 0, 50, error="lost")]
    assert mean_seconds("a").value(apps) == 2.0
    assert mean_seconds().value(apps) == pytest.approx(10 / 3)
    assert percentile(0.9, "a").value(apps) == 3.0
    assert ms_per_token("b").value(apps) == 600.0
    assert apps_per_minute().value(apps) == 30.0  # three within six seconds
    assert mean_seconds("nothing").value(apps) is None


def test_quartiles() -> None:
    """A single value is its own median and quartiles; the quartiles of two lie between them."""
    assert (spread([2.0]).low, spread([2.0]).median, spread([2.0]).n) == (2.0, 2.0, 1)
    four = spread([1.0, 2.0, 3.0, 10.0])
    assert (four.low, four.median, four.high, four.n) == (1.75, 2.5, 4.75, 4)


@pytest.mark.parametrize(
    ("above", "below", "even", "chance"),
    [
        (0, 0, 3, 1.0),
        (4, 4, 0, 1.0),
        (7, 1, 0, 18 / 256),  # 1 + 8 of the 256 ways, on either side
        (1, 7, 0, 18 / 256),
        (8, 0, 0, 2 / 256),
        (8, 0, 1, 2 / 256),  # a pair without a difference proves nothing
        (10, 2, 0, 2 * (1 + 12 + 66) / 4096),
    ],
)
def test_the_sign_test_of_pairs(above: int, below: int, even: int, chance: float) -> None:
    """By counting the ways in which as few pairs, or fewer, fall on one side."""
    assert sign_test([1.1] * above + [0.9] * below + [1.0] * even) == chance


def run(system: str, repeat: int, *apps: App) -> Run:
    """A repetition of the only point."""
    return Run(
        system=system,
        point="p",
        x=1.0,
        delay_ms=0,
        repeat=repeat,
        apps=apps,
        client_cpu_s=0.1,
        server_cpu_s=0.2,
        others_cpu_s=0.0,
    )


def test_a_ratio_is_of_the_same_repetition_and_failures_are_counted() -> None:
    """Other load made the second repetition ten times slower for both; the ratio stays 2."""

    async def program(stage: Stage, point: Point) -> None: ...

    metrics = {"seconds": mean_seconds(), "rate": apps_per_minute()}
    workload = Workload(
        title="",
        points=lambda scale, prepared: [],
        run=program,
        metrics=metrics,
    )
    runs = [
        run("theirs", 0, app("a", 0, 4)),
        run("ours", 0, app("a", 0, 2)),
        run("theirs", 1, app("a", 0, 40)),
        run("ours", 1, app("a", 0, 20)),
        run("ours", 2, app("a", 0, 9, error="lost")),
    ]
    theirs, ours = rows(workload, runs, "theirs")
    assert (theirs["apps"], theirs["failed"], ours["apps"], ours["failed"]) == (2, 0, 3, 1)
    assert ours["metrics"]["seconds"]["median"] == 11.0
    assert ours["metrics"]["seconds"]["ratio"]["median"] == 2.0
    assert ours["metrics"]["rate"]["ratio"]["low"] == 2.0  # more is better there
    assert theirs["metrics"]["seconds"]["ratio"]["median"] == 1.0


def test_the_runs_kept_of_an_earlier_part(tmp_path: Path) -> None:
    """Runs are read as they were written; later repetitions keep the token counts of their calls.

    After a change of code, machine or size nothing is kept; other systems are refused.
    """
    apps = [app("a", 0.0, 1.5, output=7), app("a", 0.5, 2.0, error="lost")]
    runs = [replace(run("ours", repeat), apps=apps) for repeat in (0, 1)]
    machine = dict.fromkeys(resume.OF_THE_MACHINE, "m")
    report = {
        **dict.fromkeys(resume.OF_THE_REPORT, 1),
        "machine": machine,
        "systems": {"ours": None},
        "runs": [run.to_json() for run in runs],
        "prepared": {"saturation": 2.0},
        "repeated_tokens": 0.5,
        "seconds": 9.0,
    }
    path = results.write(tmp_path, "w", report)
    kept, reason = resume.kept(path, report)
    assert kept is not None and reason == ""
    assert kept.runs[0] == runs[0]
    assert [[one.output for one in run.apps] for run in kept.runs] == [[7, 10], [7, 10]]
    assert kept.runs[1].apps[0].calls == []
    assert [run.to_json() for run in kept.runs] == report["runs"]
    assert (kept.prepared, kept.repeated, kept.seconds) == ({"saturation": 2.0}, 0.5, 9.0)
    assert resume.kept(tmp_path / "none.json", report) == (None, "")
    other = {**report, "kv_tokens": 2, "machine": {**machine, "source": "x"}}
    said = "w.json is taken anew: it was of another kv_tokens, source"
    assert resume.kept(path, other) == (None, said)
    with pytest.raises(InvalidRequest, match=r"^w\.json holds ours: go on with the same systems"):
        resume.kept(path, {**report, "systems": {"ours": None, "theirs": None}})


def report_of(name: str, *runs: Run) -> dict[str, Any]:
    """A report of raw runs as the harness writes it."""
    taken = dict.fromkeys(results.TAKEN) | {"workload": name, "variant": "", "began": "today"}
    systems = {run.system: {"title": run.system} for run in runs}
    return {**taken, "systems": systems, "runs": [run.to_json() for run in runs]}


def test_a_summary_holds_the_data_of_the_report() -> None:
    """It says where the server's calls spent their time."""
    told = Call("c", 1.0, 4.0, 10, 3, queue_s=1.0, fill_s=2.0, cached=5)
    runs = [
        run("theirs", 0, app("chain", 0, 4), app("chain", 0, 2)),
        run("ours", 0, replace(app("chain", 0, 3), calls=[told]), app("chain", 0, 1, error="lost")),
        run("ours", 1, app("chain", 0, 2)),
    ]
    found = results.summarise(report_of("many_chains", *runs))
    assert (found["date"], found["repeats"]) == ("today", 2)
    theirs, ours = found["rows"]
    assert "phases_s" not in theirs
    assert ours["phases_s"] == {"queue": 1.0, "fill": 2.0, "generate": 1.0}


def test_the_servers_sums_come_before_its_graphs() -> None:
    """The calls of a plain client have no phases; the sums that the server reported stand for
    them."""
    asked = {"queue": 3.0, "fill": 5.0, "generate": 2.0, "transform": 0.0}
    one = replace(run("ours", 0, app("user", 0, 4)), phases_s=asked)
    (row,) = results.summarise(report_of("copilot", one))["rows"]
    assert row["phases_s"] == {"queue": 3.0, "fill": 5.0, "generate": 2.0}
    assert row["cached"] == 0.0


def test_json_for_a_reader() -> None:
    """A value that fits in a line takes one line, and short items share a line."""
    value = {"a": list(range(60)), "b": {10: 1.5, "long": "x" * 150}}
    lines = results.dumps(value).splitlines()
    assert json.loads("".join(lines)) == {"a": list(range(60)), "b": {"10": 1.5, "long": "x" * 150}}
    assert len(lines) == 10 and max(map(len, lines)) <= 165


def test_texts_have_their_length_and_their_salt() -> None:
    """Equal seeds give equal texts; another salt changes the number at the beginning."""
    one, same, other = (Texts(words, salt).document("s", 50) for salt in (7, 7, 8))
    assert one == same
    assert len(one.split()) == len(other.split()) == 50
    assert (one[:11], other[:11]) == ("Part 0007. ", "Part 0008. ")
    assert Texts(words, 7).document("t", 50)[11:] != one[11:]
    assert "{" not in one and "\n" not in one


def test_repeated_tokens() -> None:
    """Lines that occur in two prompts count in both; a line that occurs twice in one does not."""
    assert repeated_share(["a a\nb", "a a\nc\nc"], words) == 4 / 7
    assert repeated_share([], words) == 0.0


def test_every_workload_has_points() -> None:
    """Its points have different names at both scales, and the first one is quick."""
    for name in names():
        workload = load(name)
        for scale in (TINY, FULL):
            points = workload.points(scale, {"saturation": 2.0})
            assert points[0].quick, name
            assert len({point.name for point in points}) == len(points), name
        assert set(workload.systems or ()) | set(workload.quick_systems or ()) <= set(SYSTEMS)


def test_both_sides_get_the_same_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours is given in tokens, vLLM's in bytes: keys and values, 30 layers, 3 heads of 64, 2
    bytes."""
    (tmp_path / "config.json").write_text(
        '{"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, '
        '"hidden_size": 576, "max_position_embeddings": 2048}'
    )
    setup = Setup(model=tmp_path, kv_tokens=1000)
    ours = command(ServerSpec(Kind.WEFTLINE), setup, 1)
    assert ours[ours.index("--kv-tokens") + 1] == "1000"
    monkeypatch.setattr(servers, "VLLM_PYTHON", tmp_path / "config.json")
    theirs = command(ServerSpec(Kind.VLLM), setup, 1)
    assert theirs[theirs.index("--kv-cache-memory-bytes") + 1] == str(1000 * 2 * 30 * 3 * 64 * 2)
    assert "--tool-call-parser" in theirs, "else it refuses the tools of an agent"
    wide = command(ServerSpec(Kind.VLLM), replace(setup, dtype="float32"), 1)
    assert wide[wide.index("--kv-cache-memory-bytes") + 1] == str(1000 * 2 * 30 * 3 * 64 * 4)
    faster = command(ServerSpec(Kind.VLLM), replace(setup, vllm_dtype="float32"), 1)
    assert faster == wide  # vLLM has its own dtype, and a pool of as many tokens
    assert (
        faster[faster.index("--max-model-len") + 1] == "768"
    )  # vLLM keeps one of eight blocks back
    ample = command(ServerSpec(Kind.VLLM), replace(setup, kv_tokens=65_536), 1)
    assert "--max-model-len" not in ample
    given = environment(ServerSpec(Kind.VLLM), {"PYTHONPATH": "ours", "HOME": "/h"})
    assert given["VLLM_CPU_NUM_OF_RESERVED_CPU"] == "0"
    assert (given["HOME"], "PYTHONPATH" in given) == ("/h", False)


def test_servers_are_held_to_avx2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """WEFTLINE_ISA holds vLLM's libraries, too: those of a vLLM that weftline starts by a program
    beside its interpreter. Ours need no path."""
    held = {"WEFTLINE_ISA": "avx2"}
    peer, ours = (environment(ServerSpec(kind), held) for kind in (Kind.VLLM, Kind.WEFTLINE))
    assert (peer["ATEN_CPU_CAPABILITY"], ours["ATEN_CPU_CAPABILITY"]) == ("avx2", "avx2")
    assert peer["PYTHONPATH"].endswith("held_to_avx2") and "PYTHONPATH" not in ours
    (tmp_path / "python").symlink_to(sys.executable)
    program = held_python(tmp_path / "python")
    ask = "import os, sys; print(os.environ['ONEDNN_MAX_CPU_ISA'], sys.path[1:3])"
    given = {"PYTHONPATH": "/site"}
    said = subprocess.run([program, "-c", ask], env=given, capture_output=True, text=True)
    assert said.stdout == f"AVX2 {[peer['PYTHONPATH'], '/site']}\n"
    (tmp_path / "config.json").write_text(
        '{"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 8, '
        '"max_position_embeddings": 2048}'
    )
    monkeypatch.setattr(servers, "VLLM_PYTHON", tmp_path / "python")
    monkeypatch.setenv("WEFTLINE_ISA", "avx2")
    words = command(SYSTEMS["weftline-vllm-plugin"].server, Setup(model=tmp_path), 1)
    assert words[words.index("--engine-python") + 1] == str(program)
    described = machine.describe()
    assert described["held_to_avx2"] and not described["bf16_instructions"]
    assert machine.slug(2).endswith("-2-cores-avx2")


def test_the_probe_multiplies_in_both_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe runs in vLLM's interpreter; here this one takes its place."""
    (tmp_path / "config.json").write_text('{"hidden_size": 8, "intermediate_size": 16}')
    monkeypatch.setattr(probe, "VLLM_PYTHON", Path(sys.executable))
    monkeypatch.setattr(probe, "SECONDS", 0.01)
    found = probe.multiplications(tmp_path, dict(os.environ))
    assert set(found) == {"bfloat16", "float32"} and min(found.values()) > 0
    monkeypatch.setattr(probe, "PROGRAM", "import no_torch_here")
    with pytest.raises(EngineUnavailable, match=r"(?s)^vLLM's torch does not .*ModuleNotFound"):
        probe.multiplications(tmp_path, dict(os.environ))


def test_agents_overflow_their_pool_at_every_scale() -> None:
    """All contexts in their last turn are three times the pool, at every scale."""
    for scale in (TINY, QUICK, FULL):
        turns, agents = many_agents.turns_of(scale), scale.items(many_agents.AGENTS)
        longest = many_agents.role_tokens(scale) + many_agents.turn_tokens(scale)
        assert agents * longest == pytest.approx(3 * many_agents.kv_tokens(scale), rel=0.01)
    assert (turns, agents, longest, many_agents.kv_tokens(FULL)) == (8, 32, 1200, 12_800)


def test_one_pool_for_all_workloads_is_filled_by_the_roles_of_agents() -> None:
    """With --kv-tokens no workload restarts the servers for a pool of its own, and agents still
    overflow it: 32 contexts of 3,072 tokens are three times 32,768."""
    asked = options.parser().parse_args(["on-vllm", "--kv-tokens", "32768"])
    scale = options.scale_of(asked)
    assert (scale.name, scale.kv_tokens, many_agents.kv_tokens(scale)) == ("full", 32_768, 32_768)
    longest = many_agents.role_tokens(scale) + many_agents.turn_tokens(scale)
    assert (many_agents.turns_of(scale), longest, longest * 32) == (8, 3072, 3 * 32_768)


def test_only_many_agents_are_run_with_semaphores() -> None:
    """The systems that are asked for are those of every workload of the column, but for clients
    that limit how many applications run at once, where there is only one."""
    few = "langchain-vllm,langchain-vllm-12,weftline-vllm"
    asked = options.parser().parse_args(["on-vllm", "--systems", few])
    chosen = {name: options.systems_of(asked, name, FULL) for name in ("many_agents", "rag")}
    assert chosen["many_agents"] == tuple(few.split(","))
    assert chosen["rag"] == ("langchain-vllm", "weftline-vllm")


def test_the_tools_of_an_agent_are_given() -> None:
    """Each has its own texts and calls. Its tools never change, so that each of its prompts begins
    with the one before. The last call is the answer."""
    stage = Stage(SYSTEMS["openai-weftline"], "http://none", Texts(words, 1), QUICK, 7)
    agents = [tool_mix.drawn(stage, number) for number in range(60)]
    assert agents[3] == tool_mix.drawn(stage, 3) != agents[4]
    called = Counter(name for agent in agents for name in agent.calls)
    assert set(called) == {"clock", "search", "crawl", "answer"} and called["answer"] == 60
    assert called["clock"] > called["search"] > called["crawl"]
    for agent in agents:
        assert agent.calls[-1] == "answer" and len(agent.results) == len(agent.calls) - 1
        schemas = [tool["function"]["parameters"] for tool in agent.tools]
        assert len({str(schema) for schema in schemas}) == 1 and len(schemas) == 4
        [text] = schemas[0]["properties"]["text"]["enum"]
        assert len(text.split()) > 5
    assert tool_mix.seconds_of("crawl", QUICK) == 8.0 == 10 * tool_mix.seconds_of("crawl", TINY)


def test_a_model_gets_another_template(tmp_path: Path) -> None:
    """The directory has the name and the files of the model, also where these change later."""
    model, folder = tmp_path / "tiny", tmp_path / "out"
    model.mkdir()
    (model / "config.json").write_text("1")
    (model / TEMPLATE).write_text("its own")
    copy = with_template(model, "another", folder)
    assert copy.name == "tiny" and copy != model
    assert {file.name: file.read_text() for file in copy.iterdir()} == {
        "config.json": "1",
        TEMPLATE: "another",
    }
    (model / "config.json").write_text("2")
    assert with_template(model, "another", folder) == copy != with_template(model, "third", folder)
    assert (copy / "config.json").read_text() == "2" and (model / TEMPLATE).read_text() == "its own"


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_is_a_model_of_random_weights(tmp_path: Path, shape: str) -> None:
    """Its config.json says the shape, with the vocabulary of the tokenizer that it gets."""
    base, folder = tmp_path / "base", tmp_path / "models"
    base.mkdir()
    small = {"vocab_size": 300, "bos_token_id": 1, "eos_token_id": 2}
    (base / "config.json").write_text(json.dumps(small))
    (base / "tokenizer.json").write_text("{}")
    (base / "model.safetensors").write_text("weights")
    made = random_model(shape, base, folder)
    assert sorted(path.name for path in made.iterdir()) == ["config.json", "tokenizer.json"]
    wanted, found = SHAPES[shape], read_config(made)
    assert set(found.kinds) == set(wanted.kinds)
    assert found == replace(wanted, vocabulary=300, eos=(2,), kinds=found.kinds)
    assert random_model(shape, base, folder) == made
    with pytest.raises(InvalidRequest, match=r"no shape 'x': there are qwen3-0\.6b"):
        random_model("x", base, folder)


def test_the_prompt_of_an_agent_has_its_tools() -> None:
    """The template writes what the model wrote, so a prompt begins with the context before it."""
    template = _compiled(tool_mix.TEMPLATE.read_text(), "m")
    tools = [tool_mix.described("clock", "now")]
    before: list[dict[str, object]] = [
        {"role": "system", "content": "Role."},
        {"role": "user", "content": "Go."},
    ]
    call = {"function": {"name": "clock", "arguments": {"text": "now"}}}
    after = [*before, {"role": "assistant", "content": "", "tool_calls": [call]}]
    prompt = template.render(messages=before, tools=tools, add_generation_prompt=True)
    assert '"parameters": {"type": "object", "properties": {"text": ' in prompt
    assert prompt.endswith("<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n")
    wrote = '<tool_call>\n{"name": "clock", "arguments": {"text": "now"}}\n</tool_call>'
    assert template.render(messages=after, tools=tools) == f"{prompt}{wrote}<|im_end|>\n"


def test_a_missing_vllm_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the command that installs it."""
    monkeypatch.setattr(servers, "VLLM_PYTHON", tmp_path / "none")
    with pytest.raises(InvalidRequest, match="run `make install-bench`"):
        command(ServerSpec(Kind.VLLM), Setup(model=tmp_path), 1)


async def test_a_server_that_does_not_come_up_is_one_sentence(tmp_path: Path) -> None:
    """The sentence has the exit code, the last error, and the path of the log."""
    spec = ServerSpec(Kind.WEFTLINE, ("--policy", "nonsense"))
    with pytest.raises(EngineUnavailable) as raised:
        async with running(spec, Setup(model=None, logs=tmp_path), "ours"):
            raise AssertionError("it serves")
    assert str(raised.value).startswith("ours ended with exit code 2: weftline serve: error: ")
    assert str(raised.value).endswith(f"(all of it: {tmp_path / 'ours.txt'})")


async def test_a_port_in_use_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has taken the port that was free a moment ago."""
    taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    monkeypatch.setattr(servers, "free_port", lambda: port)
    with pytest.raises(EngineUnavailable, match=r"^ours ended with exit code \d+: .*in use"):
        async with running(ServerSpec(Kind.WEFTLINE), Setup(model=None, logs=tmp_path), "ours"):
            raise AssertionError("it serves")
    taken.close()


def test_a_run_waits_until_the_servers_are_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that still computes after its answer comes to rest before another is measured."""
    monkeypatch.setattr(fleets, "REST_S", 1.0)  # on a busy machine the process gets its turn in it
    monkeypatch.setattr(fleets, "LONGEST_S", 60.0)
    code = "import time; time.sleep(0.1)\nwhile time.process_time() < 1: pass\ntime.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    fleet = Fleet()
    fleet._servers[ServerSpec(Kind.VLLM)] = Server("http://127.0.0.1:1", process, ())
    try:
        while not any(fleet.cpu_seconds().values()):
            time.sleep(0.01)
        asyncio.run(fleet.rest())
        assert sum(fleet.cpu_seconds().values()) >= 0.98
    finally:
        process.kill()
        process.wait()


def test_the_command_refuses_in_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing vLLM or model and unknown names are one sentence each, before any measurement."""
    words = ["copilot", "--null", "--folder", str(tmp_path)]
    monkeypatch.setattr(servers, "VLLM_PYTHON", tmp_path / "none")
    cases = {
        "run `make install-bench`": [*words, "--systems", "langchain-vllm"],
        "there is no system 'x'": [*words, "--systems", "x"],
        "there is no workload 'x'": ["all", "--names", "x", *words[1:]],
        "there are no summaries in": ["table", "--folder", str(tmp_path)],
    }
    for expected, arguments in cases.items():
        assert harness(arguments) == 1
        said = capsys.readouterr().err
        assert said.startswith("weftline bench: ") and said.count("\n") == 1, said
        assert expected in said
    monkeypatch.setattr(servers, "VLLM_PYTHON", Path(__file__))
    assert harness(cases["run `make install-bench`"]) == 1
    assert "leave out --null" in capsys.readouterr().err
    assert list(tmp_path.glob("*.json")) == []


async def test_the_delaying_proxy_changes_nothing() -> None:
    """All bytes arrive in order in both directions, and so does the end."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read())[::-1])
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    line = await proxy(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", 0.002, 0.5)
    reader, writer = await asyncio.open_connection(*line.sockets[0].getsockname())
    sent = bytes(range(256)) * 2000
    writer.write(sent)
    writer.write_eof()
    assert await reader.read() == sent[::-1]
    for one in (writer, server, line):
        one.close()


def test_passages_of_one_length() -> None:
    """Passages are cut to equal token counts, so that every system makes as many calls."""
    counted = get_tokenizer()
    made = of_one_length(["weft " * 30, "antidisestablishmentarianism " * 9, "loom, warp; " * 20])
    assert [len(counted(text)) for text in made] == [54] * 3


def test_a_weftline_may_start_vllm_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the baseline's pool and type, and its own scheduler; drafting is vLLM's option."""
    (tmp_path / "config.json").write_text(
        '{"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 8, '
        '"max_position_embeddings": 2048}'
    )
    monkeypatch.setattr(servers, "VLLM_PYTHON", tmp_path / "config.json")
    setup = Setup(model=tmp_path, kv_tokens=4096, vllm_dtype="float32")

    def words_of(setup: Setup) -> tuple[str, ...]:
        return command(SYSTEMS["weftline-vllm-plugin"].server, setup, 1)

    words = words_of(setup)
    assert words[words.index("--vllm-scheduler") + 1] == "weftline"
    assert words[words.index("--dtype") + 1] == "float32"
    theirs = command(ServerSpec(Kind.VLLM), setup, 1)
    pool = theirs[theirs.index("--kv-cache-memory-bytes") + 1]
    assert f"--vllm-arguments=--kv-cache-memory-bytes {pool} " in words[-1]
    graphs = json.dumps({"mode": 0})
    more = replace(setup, vllm_arguments=("--compilation-config", graphs))
    assert command(ServerSpec(Kind.VLLM), more, 1)[-2:] == ("--compilation-config", graphs)
    given = shlex.split(words_of(more)[-1].removeprefix("--vllm-arguments="))
    assert given[-2:] == ["--compilation-config", graphs]
    random = replace(setup, random_weights=True)
    ours = command(SYSTEMS["weftline"].server, random, 1)
    assert ours[ours.index("--without") + 1] == "drafting"
    for line in (command(ServerSpec(Kind.VLLM), random, 1), words_of(random), ours):
        assert line[line.index("--load-format") + 1] == "dummy"
    in_front = command(SYSTEMS["weftline-vllm"].server, setup, 1, "http://v")
    assert in_front[-5:] == (str(tmp_path), "--engine", "vllm", "--connect", "http://v")
