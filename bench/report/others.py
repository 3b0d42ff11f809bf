"""Writes the report's sections on the programs of bench/micro and bench/gpu."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Report = Mapping[str, Any]


def paragraph(text: str) -> list[str]:
    """The lines of a paragraph of the page."""
    return textwrap.wrap(text, 98, break_long_words=False, break_on_hyphens=False)


def kind(report: Report) -> str:
    """The CPU of a report's machine, and whether it multiplies bfloat16."""
    machine = report["machine"]
    bf16 = "with" if machine["bf16_instructions"] else "without"
    return f"{machine['cpu']} {bf16} bfloat16 instructions"


def simulation(report: Report) -> list[str]:
    """The simulator's error against measurements, and its results for many engines."""
    cost = {name: f"{value / 1000:.3g} ms" for name, value in report["cost_us"].items()}
    attend_us = report["cost_us"]["attend_s"]
    fitted = report["calibrated_on"]
    lines = [
        "## Many engines, simulated",
        "",
        *paragraph(
            "`weftline bench simulate` runs the server's own sessions, passes and policy, and the "
            "embedded engine's scheduler, on simulated engines. A step takes "
            f"{cost['step_s']}, plus {cost['fill_s']} for each prompt token and "
            f"{cost['sequence_s']} for each sequence that decodes. Each token that a prompt token "
            f"attends to adds {attend_us:.3g} µs. These times are fitted to `{fitted}`. All "
            "of its prompts are short, so attention's share in the cost of a prompt token is not "
            "fitted: it was measured once on the engine. Nothing is fitted to the other "
            "workloads; the mean error of their mean completion time is "
            f"{report['mean_error']:.0%}."
        ),
        "",
        "| workload | point | round trip | measured | simulated | error |",
        "|---|---|---|---|---|---|",
    ]
    for one in report["foretold"]:
        note = ", fitted" if one["workload"] == fitted else ""
        lines.append(
            f"| {one['workload']}{note} | {one['point']} | {one.get('delay_ms', 0)} ms "
            f"| {one['measured_s']:.2f} s | {one['simulated_s']:.2f} s | {one['error']:+.0%} |"
        )
    if report["sizes"]:
        lines += _sizes(report)
    return [*lines, ""]


def _sizes(report: Report) -> list[str]:
    lines = [
        "",
        *paragraph(
            "The load is a mix of chains, map-reduce summaries, users of sixteen copilots, and "
            "chats. Applications arrive at random, at the same rate for each engine:"
        ),
        "",
        "| engines | policy | calls | mean completion | p90 | prompts cached | engines busy |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in report["sizes"]:
        lines.append(
            f"| {one['engines']} | {one['policy']} | {one['calls']} | {one['mean_s']:.2f} s "
            f"| {one['p90_s']:.2f} s | {one['cached']:.0%} | {one['busy']:.0%} |"
        )
    return lines


def llamaindex(report: Report) -> list[str]:
    """The synthesizers of LlamaIndex, with weftline and with a plain OpenAI-like LLM."""
    lines = [
        "## LlamaIndex query engines",
        "",
        *paragraph(
            "`make bench-llamaindex` measures the seconds of a synthesis on one weftline server: "
            "with LlamaIndex's OpenAI-like LLM, with the swapped class, and with "
            "WeftlineSynthesizer."
        ),
        "",
        "| synthesizer | round trip | LLM | seconds | ratio |",
        "|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        for name, found in row["systems"].items():
            ratio = found["times_faster"]["median"]
            lines.append(
                f"| {row['case']} | {row['delay_ms']} ms | {name} "
                f"| {found['seconds']['median']:.3g} s | {ratio:.2f} |"
            )
    return [*lines, ""]


def server(report: Report) -> list[str]:
    """The cost of the server itself, and the gain from admission and retention."""
    placing, adding = report["place_ms_by_queue"], report["add_call_us_by_session"]
    lengths = list(next(iter(placing.values())))
    agents, ways = report["agents"], ("ours", "lru", "lru_behind_best_semaphore")
    lines = [
        "## The server by itself",
        "",
        *paragraph(
            "`make bench-server` times a round of placements over 16 engines by the length of the "
            "queue. The calls share prefixes, or share none, or find engines without room. It "
            "also times the addition of one call to a session by the session's "
            "size."
        ),
        "",
        f"| calls | {' | '.join(f'{int(length):,}' for length in lengths)} |",
        "|---" * (1 + len(lengths)) + "|",
        *(_curve(f"placed, {name}", placing[name], "ms") for name in placing),
        *(_curve(f"added {name}", adding[name], "µs") for name in adding),
        "",
        "| sessions at once | calls | lost or wrong | CPU per call | calls a second |",
        "|---|---|---|---|---|",
        *(
            f"| {one['at_once']:,} | {one['calls']:,} | {one['lost_or_wrong']} "
            f"| {one['cpu_ms_per_call']:.2f} ms | {one['calls_per_s']:,.0f} |"
            for one in report["whole_path"]
        ),
        "",
        *paragraph(
            f"In simulated time, {agents['agents']} agents of eight turns run on a KV pool that "
            "holds a third of them. The best semaphore in the client admits "
            f"{agents['best_semaphore']} at once."
        ),
        "",
        "| | applications a minute | computed again | mean | slowest |",
        "|---|---|---|---|---|",
    ]
    for way in ways:
        one = agents[way]
        lines.append(
            f"| {way.replace('_', ' ')} | {one['applications_per_minute']:.1f} "
            f"| {one['recomputed_share']:.0%} | {one['mean_s']:.1f} s | {one['slowest_s']:.1f} s |"
        )
    return [*lines, ""]


def _curve(name: str, points: Mapping[str, Mapping[str, float]], unit: str) -> str:
    cells = (f"{one['median']:.3g} {unit}" for one in points.values())
    return f"| {name} | {' | '.join(cells)} |"


GPU_FIGURES = (
    "`make gpu-figures FIG=n` replays figure 11, 14, 15, 16, 17 or 18 on one device, on the "
    "embedded engine with a LLaMA of random weights. The keys and values of a common prefix are "
    "shared in attention (tree), in memory only (blocks), or not at all (off). The server gets the "
    "graphs of whole applications (app), or single calls from a client 250 ms away (request)."
)


def gpu(results: Path) -> list[str]:
    """The newest numbers of each figure that `make gpu-figures` replayed, on any device."""
    newest: dict[int, Report] = {}
    for path in sorted(results.glob("*/gpu-figure-*.json")):
        report = json.loads(path.read_text())
        newest[report["figure"]] = report
    lines = [
        "## On a GPU",
        "",
        *paragraph(GPU_FIGURES),
        "",
    ]
    if not newest:
        return [*lines, "No GPU was available for these results.", ""]
    for figure, report in sorted(newest.items()):
        lines += [f"Figure {figure}, {report['device']}, {report['date']}:", "", *_figure(report)]
    return lines


def _figure(report: Report) -> list[str]:
    ways = {"tree": "tree", "blocks_shared": "blocks", "off": "off"}
    found = []  # of each row: point, sharing, policy, and the numbers or why there are none
    for row in report["rows"]:
        if "point" in row:
            measured = row if "mean_latency_s" in row else row["left_out"]
            found.append((row["point"], row["sharing"], row["policy"], measured))
            continue
        point = f"batch {row['batch']}, up to {row['most_output']} tokens"
        point += "" if row["counts"] else ", below 80 % of its roof"
        found += [(point, name, "–", row[mode]) for mode, name in ways.items()]
    lines = ["| point | sharing | policy | mean latency | ms a token |", "|---|---|---|---|---|"]
    for point, sharing, policy, measured in found:
        cells = f"{measured} | –"
        if not isinstance(measured, str):
            cells = f"{measured['mean_latency_s']:.2f} s | {measured['ms_a_token']:.1f}"
        lines.append(f"| {point} | {sharing} | {policy} | {cells} |")
    return [*lines, ""]


def rag_graph(results: Path) -> list[str]:
    """Teola's applications, of the newest run on each kind of machine; empty without one."""
    paths = sorted([*results.glob("*/rag_graph.json"), *results.glob("*/rag_graph-quick.json")])
    reports = [json.loads(path.read_text()) for path in paths]
    newest = {kind(report): report for report in reports}
    if not newest:
        return []
    sizes = reports[-1]["sizes"]
    lines = [
        "## The whole application in one graph (Teola)",
        "",
        *paragraph(
            "`weftline bench rag_graph` runs Teola's applications on one server, with the model on "
            "core 0 and the embedder on core 1: in LlamaIndex, in asyncio by hand, and as one "
            f"graph. A text has {sizes['chunks']} chunks of {sizes['chunk_tokens']} tokens, an "
            f"answer {sizes['answer_tokens']} tokens, and the search server takes "
            f"{sizes['search_delay_s']:g} s. The engine drafts nothing, because it drafts from "
            "texts that other systems have left. The bound is the longest path through the graph, "
            "with each part of the program by hand alone on the machine; what is computed before "
            "its input is complete can pass it. With one core for the model and one for the rest, "
            "the bound itself is at most 1.4 times LlamaIndex, so the paper's 1.6 to 2.1 times, on "
            "an engine for each step, cannot be reached here. The ratio is to the row's first "
            "system, task by task. The load is that of the machine, with what else ran."
        ),
        "",
    ]
    for on, report in newest.items():
        lines += [f"On {on}, weftline at {report['machine']['commit']}:", "", *_graphs(report), ""]
    return lines


def _graphs(report: Report) -> list[str]:
    lines = [
        "| application | rate | delay | load | system | tasks | seconds (quartiles) "
        "| ratio | bound |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        for name in dict.fromkeys((row["base"], *row["systems"])):
            one = row["systems"][name]
            took = one["seconds"]
            share = f"{one['of_bound']['median']:.0%}" if "of_bound" in one else ""
            lines.append(
                f"| {row['app']} | {row['rate']} | {row['delay_ms']} ms | {row.get('load', '')} "
                f"| {name} | {took['n']} "
                f"| {took['median']:.2f} s ({took['low']:.2f} to {took['high']:.2f}) "
                f"| {one['times_faster']['median']:.2f} | {share} |"
            )
    return lines


# What was measured by commands that write no results, beside the load that is stated.
_PARTS = (
    "The order of the embedder's batches, in simulated time with MiniLM's costs on one core of an "
    "AMD EPYC (`python -m bench.simulator.embedding`). A question that comes with eight chunks of "
    "256 tokens is answered 1.47 times faster if the embedder knows how far each op is from the "
    "answer; with eight such turns at once 1.24 times. Beside an ingest of 512 chunks, the 90th "
    "percentile of answers is 1.11 times that without: a question waits for the batch that runs. "
    "A batch has as many tokens as are efficient, here two chunks. With eight chunks it was 1.41 "
    "times.",
    "Shares of CPU time (`python -m bench.micro.rag_shares`), with the real model and MiniLM, four "
    "tasks of the application advanced, load 87 of other programs: graph 0.03 % (0.007 s of 22.2), "
    "communication 1.95 % (0.43 s), engines 98.0 %. CPU time hardly depends on the load.",
    "The passes (`python -m bench.micro.passes`, 300 primitives, load 22): 0.11 to 1.30 ms of "
    "CPU each, all together 7.8 ms.",
    "The high rate again, on the quiet machine: eight tasks at 0.5 a second, mean seconds of a "
    "task. Naive, in two patterns of arrivals: LlamaIndex 13.3 and 2.50, by hand 4.99 and 1.89, "
    "one graph 5.01 and 1.88. In four patterns of four tasks at 0.25 a second: by hand 2.07, "
    "1.81, 1.60, 3.77, one graph 1.84, 1.82, 1.71, 2.46. So the two cannot be told apart; the row "
    "above is four tasks of one pattern.",
    "Sub-questions, in five runs of three patterns: by hand 2.84, 3.29, 2.68, 3.30, 2.53, one "
    "graph 2.96, 4.75, 3.52, 3.92, 2.60, LlamaIndex in the first two 3.25, 3.82. One graph lost "
    "3 to 44 % to the program by hand, with the same CPU time of the model. A task whose plan "
    "was still written counted as short, because the work of its four parts was not counted, so "
    "it went before older tasks. Since it is counted, in four runs: by hand 2.25, 3.06, 1.93, "
    "1.91, one graph 2.28, 2.92, 2.05, 1.99. Alone a task takes 2.0 s either way: with one core "
    "for the model, answers that start early only move work.",
    "The application advanced, eight tasks at 0.25 a second, other load of 2 to 5: LlamaIndex "
    "28.0 s in the mean, one graph 13.5 s, by hand 11.8 s and, in a second turn, 23.1 s. No call "
    "waits in the server (20 ms at most). All tasks share the model's core, so the expansion "
    "takes 4.3 s instead of 1.5, and each answer 2 to 3 s instead of 1.0.",
    "Sub-questions (cookbook/graphs, four parts; the null engine with 20 ms a token and no limit "
    "of calls, load 34 to 49, medians of five turns): one graph is 1.05 times as fast as threads "
    "that send each part (2.97 and 3.11 s), and 1.93 times with 250 ms of round trip (3.75 and "
    "7.24 s). "
    "Without a limit of calls the last part is the longest path of both, 2.7 s.",
)


def rag_parts() -> list[str]:
    """What single parts of an application's graph are worth, and what they cost."""
    lines = ["## Parts of an application's graph", ""]
    for text in _PARTS:
        lines += [*paragraph(text), ""]
    return lines


_TOOL_PARTS = (
    "Tools that start while the model writes, against tools after its turn (`weftline bench tools "
    "--quick`, the six workloads of the Conveyor paper, one run each on 2 cores of an AMD EPYC): "
    "code gains up to 86 %, plans up to 86 %, searches up to 57 %. The paper has 26.3, 38.8 and "
    "35.8 %. No tool can start before its line or its call is written. Of what that allows, code "
    "gains 90 to 115 %, plans 87 to 109 % and searches 94 to 110 %, of 85 % to reach; plans gain "
    "76 % where the tools take a tenth of the decoding time, with noise of a fifth. A refused "
    "value stops the decoding after 0.09 s instead of 1.67 s. A short call to a database or a "
    "calculator gains 5 %.",
    "Memory while tools run (`weftline bench tool_mix`): see the agents with fast and slow tools "
    "above. There the whole is worth 2.10 times in the mean of the agents, and expecting pauses by "
    "tool 1.48 times of that.",
    "`weftline bench simulate lamps --window 60 --seeds 0,1,2` runs LAMPS's mix on a simulated "
    "GPT-J-6B. A request takes, without its tools, in the mean of three draws in the server, in "
    "LAMPS's order with exact predictions, and under InferCept: 7.4, 7.6 and 7.6 s at 1 request a "
    "second, 8.0, 8.0 and 7.9 at 2, 10.5, 10.5 and 11.0 at 3, 14.7, 16.7 and 20.0 at 4. The engine "
    "is saturated from 3 on. With predictions that are off by a tenth the server took 15.0 s at 4. "
    "Since then applications that stay away give up their room after 5 s, and the server takes "
    "10.2 s at 3 and 14.0 s at 4. [Decision 12](decisions/0012-admission-by-kind.md) has the times "
    "to the first token.",
    "A tool that is busy on one of the two cores slows the tokens beside it by a third in the "
    "median and 69 % at the 99th percentile, of 10 % to reach. With the model on one core and the "
    "tool on the other the median moves by 1 % and the 99th percentile by 45 %, because the server "
    "shares the tool's core. With a niceness of 20, which runs tools only where nothing else needs "
    "the core, it is -1 % and 6 % (`weftline bench tools --beside --niceness 20 --apart`).",
)


def tool_parts() -> list[str]:
    """What early tools and the memory of paused calls are worth."""
    lines = ["## Tools and memory", ""]
    for text in _TOOL_PARTS:
        lines += [*paragraph(text), ""]
    return [*lines, "[The page on tools](tools.md) has all rows.", ""]


def replay(results: Path) -> list[str]:
    """Recorded and drawn agent sessions on a simulated engine; empty without results."""
    newest = {
        path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*/replay-*"))
    }
    if not newest:
        return []
    lines = [
        "## Agents' sessions, replayed",
        "",
        *paragraph(
            "`weftline bench replay --simulate` replays sessions of coding agents on one simulated "
            "engine, in simulated time: their lengths and pauses, with words of our own, all "
            "multiplied by one factor. The pressure is what the running sessions need at their "
            "longest, over the tokens of the KV cache. The optimum is Belady's, with the requests "
            "in the order in which they began: it counts single tokens, and requests that run hold "
            "none of them, so no real cache reaches it. Without `--simulate` any server with "
            "OpenAI's API can be measured."
        ),
        "",
    ]
    for report in newest.values():
        trace = report["trace"].replace("_", " ")
        lines += [
            *paragraph(
                f"{report['sessions']} sessions ({trace}), {report['at_once']} at once, times "
                f"{report['scale']:g}; weftline at {report['machine']['commit']}:"
            ),
            "",
            "| pressure | system | sessions a minute | slowest | cached | computed / optimum |",
            "|---|---|---|---|---|---|",
            *map(_replayed, report["rows"]),
            "",
        ]
    return lines


def _replayed(row: Mapping[str, Any]) -> str:
    return (
        f"| {row['pressure']:g} | {row['system']} | {row['sessions_per_minute']} "
        f"| {row['slowest_s']} s | {row['cached_share']:.1%} | {row['computed_to_belady']:.2f} |"
    )


# By the name of the file that each is written from.
SECTIONS = {"simulation": simulation, "llamaindex": llamaindex, "server": server}
