"""The page that is drawn of the results: its sentences and tables, on numbers put in by hand."""

from __future__ import annotations

from dataclasses import asdict

from bench.harness import probe
from bench.harness.stage import App, Call
from bench.harness.systems import SYSTEMS
from bench.report import charts, others, page
from bench.report.rates import rate_within, sentence


def app(kind: str, start: float, seconds: float, output: int = 10, error: str | None = None) -> App:
    """One run of an application with one call."""
    return App(kind, start, seconds, "", error, [Call("c", start, seconds, 5, output)])


def test_the_page_counts_equal_answers_and_says_where_the_time_is() -> None:
    """Over all points of a way; and the phases of the calls that the server speaks of."""
    systems = {"one": {"title": "One"}, "two": {"title": "Two"}}
    rows = [{"system": "two", "same_answers": n, "apps": 4, "point": "p"} for n in (4, 3)]
    report = {"title": "Chain", "systems": systems, "summary": rows}
    assert page.exact({"chain": report})[-2] == "| Chain | Two | 7 of 8 |"
    assert page.exact({}) == []
    call = {"seconds": 4.0, "queue_s": 1.0, "fill_s": 2.0, "prompt": 10, "cached": 5}
    runs = [{"system": "two", "point": "p", "delay_ms": 0, "apps": [{"calls": [call]}]}]
    assert page.phases({"runs": runs}, {"system": "two", "point": "p", "delay_ms": 0}) == (
        "its calls wait 25% of their time, fill 50% (50% of a prompt is cached) and generate 25%"
    )


def test_the_page_shows_what_is_not_of_the_harness() -> None:
    """The simulator's errors and sizes; a query engine's seconds."""
    foretold = {"workload": "copilot", "point": "8 users", "delay_ms": 250, "error": -0.04}
    size = {"engines": 64, "policy": "app", "calls": 9, "mean_s": 2.0, "p90_s": 3.0}
    simulated = {
        "calibrated_on": "independent_chat",
        "cost": {"step_s": 0.02, "fill_s": 0.0005, "sequence_s": 0.001, "attend_s": 3e-6},
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
