"""Conveyor's six workloads: tools that start while the model writes, against tools after its turn.

    weftline bench tools --quick

The answers are given: an engine without a model writes them at a fixed pace, so that decoding takes
the same time in each run. The tools take as long as their calls say. For each workload and ratio r
of tool time to decoding time the figure is the sequential time divided by the overlapped one, less
1. The paper's bound is min(r, 1/r), which only tools that start with the first word could reach.
What is possible is less: work starts when its call, or its line, is written. The ratio is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from weftline.local import local_server

RATIOS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
STEP_S = 0.01  # of a word: about the pace of the embedded engine's smallest model on a CPU
LINES = 24  # of code or of a plan; the paper's scripts have 4 to 30
WORDS = 6  # in each line
FAST_S = 0.02  # of a search that is not the slow one
FILE = Path(__file__)


@dataclass(frozen=True, slots=True)
class Case:
    """One request: what the model writes, and the seconds that its tools take.

    `work` are the tools' pieces: the share of the reply that is written when each can start, and
    its seconds. They run one after the other, or, with `apart`, beside each other.
    """

    workload: str
    ratio: float
    reply: str
    tool_s: float
    work: tuple[tuple[float, float], ...] = ()
    apart: bool = False

    @property
    def marker(self) -> str:
        """The user's message, by which the engine finds the reply."""
        return f"#{self.workload}-{self.ratio:g}#"

    def least_s(self, decode_s: float) -> float:
        """The least seconds of any schedule, where the reply is written in `decode_s`."""
        last = decode_s
        end = 0.0
        for share, seconds in self.work:
            end = max(0.0 if self.apart else end, share * decode_s) + seconds
            last = max(last, end)
        return last


@dataclass(frozen=True, slots=True)
class Row:
    """The seconds of a case with and without early tools."""

    case: Case
    after_s: float
    early_s: float

    @property
    def gain(self) -> float:
        return self.after_s / self.early_s - 1

    @property
    def decode_s(self) -> float:
        """What is no tool time is decoding."""
        return self.after_s - self.case.tool_s

    @property
    def ratio(self) -> float:
        """Tool time by decoding time, as measured."""
        return self.case.tool_s / self.decode_s

    @property
    def bound(self) -> float:
        """The most that overlapping can gain, if all work could start at once."""
        return min(self.ratio, 1 / self.ratio) if self.ratio else 0.0

    @property
    def possible(self) -> float:
        """The most that it can gain where work starts when its call or its line is written."""
        return self.after_s / self.case.least_s(self.decode_s) - 1


def call(name: str, **arguments: Any) -> str:
    """A tool call as models write it."""
    made = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{made}\n</tool_call>\n"


def cases(ratios: Sequence[float]) -> Iterator[Case]:
    """All cases. Those without tool time of their own come once."""
    line = " ".join(["x"] * (WORDS - 1)) + " y"
    script = "\n".join([line] * LINES)
    decode_s = len(script.split()) * STEP_S
    for workload, name in (("CodeGen", "run_code"), ("Planning", "follow_plan")):
        for ratio in ratios:
            tool_s = ratio * decode_s
            # Each line ends with a space, so that a word of the engine never spans two lines.
            text = script.replace("\n", " \n")
            reply = call(name, delay_s=tool_s / LINES, lines=text)
            lines = tuple(((line + 1) / LINES, tool_s / LINES) for line in range(LINES))
            yield Case(workload, ratio, reply, tool_s, lines)
    query = "word " * 48
    decode_s = 3 * 48 * STEP_S
    for ratio in ratios:
        # The first search is the slow one. Searches of equal length end with the last of them.
        tool_s = ratio * decode_s
        slow = call("search", delay_s=tool_s, query=query)
        fast = call("search", delay_s=FAST_S, query=query)
        work = (1 / 3, tool_s), (2 / 3, FAST_S), (1.0, FAST_S)
        yield Case("Search", ratio, slow + fast + fast, tool_s, work, apart=True)
    equal = "".join(call("search", delay_s=0.5, query=query) for _ in range(3))
    work = (1 / 3, 0.5), (2 / 3, 0.5), (1.0, 0.5)
    yield Case("Search, equal", 0.0, equal, 0.5, work, apart=True)
    news = call("local_news", location="New York", why="because " * 150)
    yield Case("Validation", 0.0, news, 0.0)
    rows = call("database", query="SELECT name FROM employees" + " " * 8)
    yield Case("Database", 0.0, rows, 0.0)
    yield Case("Calculator", 0.0, call("multiply", a=200, b=701), 0.0)


@contextmanager
def served(rules: Sequence[Case], folder: Path, *options: str) -> Iterator[str]:
    """A server with the tools, whose engine writes the cases' replies."""
    script = [{"when": "done-", "reply": "Good."}]
    script += [{"when": case.marker, "reply": case.reply} for case in rules]
    (folder / "script.json").write_text(json.dumps(script))
    table = f'[[tool]]\nmodule = "_some_tools"\npath = {json.dumps(str(FILE.parent))}\n'
    (folder / "weftline.toml").write_text(table)
    words = ["--engine", "null", "--config", str(folder / "weftline.toml")]
    words += ["--null-mode", "script", "--null-script", str(folder / "script.json")]
    with local_server(*words, "--null-step-s", str(STEP_S), *options) as url:
        yield url


def seconds(http: httpx2.Client, case: Case) -> float:
    """How long the request takes."""
    body = {
        "messages": [{"role": "user", "content": case.marker}],
        "max_tokens": 4000,
        "weftline": {"run_tools": True},
    }
    began = time.perf_counter()
    answer = http.post("/v1/chat/completions", json=body)
    took = time.perf_counter() - began
    if answer.json()["choices"][0]["message"]["content"] != "Good.":
        raise SystemExit(f"weftline bench tools: {case.marker} got {answer.text[:300]}")
    return took


def measure(rules: Sequence[Case], runs: int) -> list[Row]:
    """The least seconds of every case on both servers, which take turns."""
    times: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        clients = {}
        for name, options in (("after", ("--without", "early_tools")), ("early", ())):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            url = stack.enter_context(served(rules, folder, *options))
            clients[name] = stack.enter_context(httpx2.Client(base_url=url, timeout=120))
        for case in rules:
            for _ in range(runs):
                for name, http in clients.items():
                    times.setdefault((case.marker, name), []).append(seconds(http, case))
    return [
        Row(case, min(times[case.marker, "after"]), min(times[case.marker, "early"]))
        for case in rules
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table. The exit code is 0."""
    parser = argparse.ArgumentParser(
        prog="weftline bench tools", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="one run of each case, not three")
    args = parser.parse_args(argv)
    print("| workload | tool / decode | after | early | gain | of min(r, 1/r) | of possible |")
    print("|---|---|---|---|---|---|---|")
    for row in measure(list(cases(RATIOS)), 1 if args.quick else 3):
        case = row.case
        bound, possible = (
            f"{row.gain / most:.0%}" if case.work and most else ""
            for most in (row.bound, row.possible)
        )
        print(
            f"| {case.workload} | {row.ratio:.2f} | {row.after_s:.2f} s | {row.early_s:.2f} s "
            f"| {row.gain:.1%} | {bound} | {possible} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
