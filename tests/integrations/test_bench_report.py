"""The page that is drawn of the results: its sentences and tables, on numbers put in by hand."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from bench.harness import probe
from bench.harness.stage import App, Call
from bench.harness.systems import SYSTEMS
from bench.harness.workload import load
from bench.report import charts, others, page, verdicts
from bench.report.rates import rate_within, sentence


def app(kind: str, start: float, seconds: float, output: int = 10, error: str | None = None) -> App:
    """One run of an application with one call."""
    return App(kind, start, seconds, "", error, [Call("c", start, seconds, 5, output)])


def test_the_page_counts_equal_answers_and_says_where_the_time_is() -> None:
    """Over all points of a way; and the phases of the calls that the server speaks of."""
    systems = {"one": {"title": "One"}, "two": {"title": "Two"}}
    rows = [{"system": "two", "same_answers": n, "compared": 4, "point": "p"} for n in (4, 3)]
    report = {"title": "Chain", "systems": systems, "summary": rows}
    assert page.exact({"chain": report})[-2] == "| Chain | Two | 7 of 8 |"
    assert page.exact({}) == []
    call = {"seconds": 4.0, "queue_s": 1.0, "fill_s": 2.0, "prompt": 10, "cached": 5}
    runs = [{"system": "two", "point": "p", "delay_ms": 0, "apps": [{"calls": [call]}]}]
    assert verdicts.phases({"runs": runs}, {"system": "two", "point": "p", "delay_ms": 0}) == (
        "its calls wait 25% of their time, fill 50% (50% of a prompt is cached) and generate 25%"
    )
    # Calls by themselves, of which the client knows no more than when they began and ended.
    alone = {**call, "queue_s": None, "fill_s": None}
    asked = {"queue": 3.0, "fill": 5.0, "generate": 2.0, "transform": 0.0}
    runs = [{**runs[0], "apps": [{"calls": [alone]}], "phases_s": asked}]
    assert verdicts.phases({"runs": runs}, {"system": "two", "point": "p", "delay_ms": 0}) == (
        "its calls wait 30% of their time, fill 50% (50% of a prompt is cached) and generate 20%"
    )


def test_the_page_shows_what_is_not_of_the_harness() -> None:
    """The simulator's errors and sizes; a query engine's seconds."""
    foretold = {"workload": "copilot", "point": "8 users", "delay_ms": 250, "error": -0.04}
    size = {"engines": 64, "policy": "app", "calls": 9, "mean_s": 2.0, "p90_s": 3.0}
    simulated = {
        "calibrated_on": "independent_chat",
        "cost_us": {"step_s": 20_000.0, "fill_s": 500.0, "sequence_s": 1000.0, "attend_s": 3.0},
        "mean_error": 0.04,
        "foretold": [foretold | {"measured_s": 2.5, "simulated_s": 2.4}],
        "sizes": [size | {"cached": 0.3, "busy": 0.8}],
    }
    lines = others.simulation(simulated)
    assert "| copilot | 8 users | 250 ms | 2.50 s | 2.40 s | -4% |" in lines
    assert "| 64 | app | 9 | 2.00 s | 3.00 s | 30% | 80% |" in lines
    assert "20 ms each" in " ".join(lines) and "3 µs for each token" in " ".join(lines)
    found = {"seconds": {"median": 1.5}, "times_faster": {"median": 2.0}}
    rows = [{"case": "refine", "delay_ms": 250, "systems": {"weftline": found}}]
    assert "| refine | 250 ms | weftline | 1.5 s | 2.00 |" in others.llamaindex({"rows": rows})


def test_the_page_shows_the_figures_of_a_gpu(tmp_path: Path) -> None:
    """The newest of each: applications by sharing and policy, and batches that decode."""
    assert "No GPU was to be had for these results." in others.gpu(tmp_path)
    about = {"device": "A GPU", "date": "2030-01-02"}
    batch = {"mean_latency_s": 2.0, "ms_a_token": 20.0}
    decoding = {"batch": 8, "most_output": 9, "counts": True, "tree": batch, "pages_shared": batch}
    app = {"point": "4 files", "sharing": "tree", "policy": "app", **batch}
    late = {"point": "4 files", "sharing": "off", "policy": "request", "left_out": "for time"}
    for day, figure, rows in (
        ("2030-01-01", 18, []),
        ("2030-01-02", 18, [app, late]),
        ("2030-01-02", 15, [{**decoding, "off": "does not fit"}]),
    ):
        path = tmp_path / f"{day}-a-gpu" / f"gpu-figure-{figure}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({**about, "figure": figure, "rows": rows}))
    lines = others.gpu(tmp_path)
    assert lines.index("Figure 15, A GPU, 2030-01-02:") < lines.index(
        "Figure 18, A GPU, 2030-01-02:"
    )
    assert "| batch 8, up to 9 tokens | pages | – | 2.00 s | 20.0 |" in lines
    assert "| batch 8, up to 9 tokens | off | – | does not fit | – |" in lines
    assert "| 4 files | tree | app | 2.00 s | 20.0 |" in lines
    assert "| 4 files | off | request | for time | – |" in lines


def test_the_rate_within_a_bound() -> None:
    """Between two points on a straight line; where all are within it, the last."""
    curve = [(1.0, 10.0), (2.0, 20.0), (4.0, 60.0)]
    assert rate_within(curve, 40.0) == 3.0
    assert rate_within(curve, 100.0) == 4.0
    assert rate_within(curve, 5.0) is None
    rows = [
        {"system": name, "x": x, "metrics": {"ms": {"median": y, "unit": "ms"}}}
        for name, factor in (("base", 1.0), ("ours", 0.5))
        for x, y in ((rate, latency * factor) for rate, latency in curve)
    ]
    said = sentence({"systems": {"base": {}, "ours": {}}, "summary": rows}, "ours", 3.0)
    assert said is not None
    assert said.endswith("takes 2 requests a second and weftline 3: 1.50 times, of 3 to reach.")


def test_agents_are_judged_beside_the_best_semaphore_too() -> None:
    """Of the systems at the same point, and of ours alone at the points behind the first one."""
    ratios = {
        ("32 agents", "langchain-vllm"): 1.0,
        ("32 agents", "langchain-vllm-4"): 1.5,
        ("32 agents", "langchain-vllm-12"): 2.0,
        ("32 agents", "weftline"): 3.5,
        ("8 agents", "langchain-vllm"): 1.0,
        ("8 agents", "langchain-vllm-8"): 4.0,
        ("8 agents", "weftline"): 1.25,
    }
    rows = [
        {
            "point": point,
            "system": system,
            "delay_ms": 0,
            "cache": "cold",
            "metrics": {"apps per minute": {"ratio": {"median": ratio}}},
        }
        for (point, system), ratio in ratios.items()
    ]
    systems = {name: {} for _, name in ratios}
    report = {"workload": "many_agents", "systems": systems, "summary": rows}
    assert list(verdicts.verdicts(load("many_agents"), report)) == [
        "3.50 times at 0 ms.",
        "1.75 times the baseline with 12 at once, the best of 2 semaphores, of 1.2 to reach.",
    ]
    assert list(verdicts.elsewhere(report)) == ["At 8 agents: 1.25 times."]
    without = {**report, "summary": [row for row in rows if not row["system"][-1].isdigit()]}
    assert list(verdicts.verdicts(load("many_agents"), without)) == ["3.50 times at 0 ms."]


def test_what_each_part_adds() -> None:
    """Stacked on weftline's own time: without groups half as fast, without prefix no slower."""
    ratios = {"weftline": 1.0, "without-groups": 0.5, "without-prefix": 1.01}
    rows = [
        {"system": name, "point": "p", "delay_ms": 0, "metrics": {"s": {"ratio": {"median": r}}}}
        for name, r in ratios.items()
    ]
    titles = {name: {"title": SYSTEMS[name].title} for name in ratios}
    found = charts.losses({"summary": rows, "systems": titles})
    assert found == {"weftline": 1.0, "without groups": 1.0, "without prefix": 0.0}


def test_an_application_is_beside_itself_in_the_scatter() -> None:
    """Of the same repetition at the first point, where it succeeded on both."""
    where = {"point": "p", "delay_ms": 250, "cache": "cold"}
    both = [app("a", 0, 4), app("a", 0, 2)], [app("a", 0, 8), app("a", 0, 1, error="lost")]
    runs = [
        {"system": name, "repeat": 0, "apps": [asdict(one) for one in apps], **where}
        for name, apps in zip(("ours", "theirs"), both, strict=True)
    ]
    report = {"runs": runs, "summary": [{**where, "x": 1.0}]}
    assert charts.matched(report, "theirs", "ours") == [(8, 4)]
    report["systems"] = {"theirs": {}, "ours": {}}
    said = "Of 1 applications {} took longer than with the baseline."
    assert verdicts.slower(report, "ours") == said.format("none")
    assert verdicts.slower({**report, "systems": {"ours": {}}}, "theirs") == said.format(1)


def test_the_page_says_in_which_type_vllm_ran() -> None:
    """Chosen by the probe; or given, on a machine whose ratios then flatter us."""
    machine = {"bf16_instructions": False}
    report = {"model": "m", "dtype": "bfloat16", "machine": machine}
    probed = {"vllm_dtype": "float32", "vllm_probe_ms": {"bfloat16": 18.0, "float32": 4.5}}
    assert probe.fastest(probed["vllm_probe_ms"]) == "float32"
    assert page.dtypes(report | probed) == (
        "m in bfloat16, vLLM in float32, the faster one for it here (4.0 times, by a probe of its "
        "torch)"
    )
    assert page.dtypes(report | {"vllm_dtype": "bfloat16"}).endswith("over vLLM is this")
    assert page.dtypes(report | {"vllm_dtype": "float32"}) == "m in bfloat16, vLLM in float32"
    assert page.dtypes({"model": None}) == "the null engine"


def test_what_is_not_taken_anew_is_the_newest_of_the_same_machine(tmp_path: Path) -> None:
    """A folder's own file comes first; another machine's is none."""
    for folder, name in (("01-box", "a"), ("02-box", "a"), ("03-box", "b"), ("04-tin", "a")):
        (tmp_path / f"2026-01-{folder}").mkdir(exist_ok=True)
        (tmp_path / f"2026-01-{folder}" / f"{name}.json").write_text("{}")
    own = tmp_path / "2026-01-03-box"
    assert page.newest(own, "a.json") == [tmp_path / "2026-01-02-box" / "a.json"]
    assert page.newest(own, "b.json") == [own / "b.json"]
    assert page.newest(own, "c.json") == []
