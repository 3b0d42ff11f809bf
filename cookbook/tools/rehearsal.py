"""What the agents of this folder share: a server with a given answer, slow tools, and a timeline.

Each agent is run with and without early tools. With a file's name it draws both runs into it, and
with `--short` it prints only how long both took.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weftline import timeline

QUESTION = "I want to see the Alps next week. Where is the weather good, and how do I get there?"
SECONDS = {"Bolzano": 1.5, "Chamonix": 1.0, "Innsbruck": 0.5}  # that a search takes
ANSWER = "Go to Bolzano: it is sunny there, and the train leaves at nine."
WHY = "because the weather there decides whether we can walk at all on that day, or only by train"
STEP_S = 0.02  # a word of the rehearsed model


@dataclass
class Times:
    """When each call of the model and each tool ran, in seconds of one clock."""

    spans: list[tuple[str, str, float, float]] = field(default_factory=list)

    @contextmanager
    def span(self, kind: str, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.spans.append((kind, name, began, time.monotonic()))

    @property
    def overlap_s(self) -> float:
        """The seconds in which a tool and the model ran at the same time."""
        models = [(a, b) for kind, _, a, b in self.spans if kind == "model"]
        tools = [(a, b) for kind, _, a, b in self.spans if kind == "tool"]
        return sum(max(0.0, min(b, d) - max(a, c)) for a, b in models for c, d in tools)

    @property
    def seconds(self) -> float:
        """From the beginning of the first span to the end of the last one."""
        return max(end for *_, end in self.spans) - min(began for _, _, began, _ in self.spans)

    def graph(self) -> dict[str, Any]:
        """The spans as a session's graph, which `weftline.timeline` draws."""
        steps = [
            {
                "name": name if kind == "tool" else f"{name} writes",
                "kind": kind,
                "queued_s": began,
                "started_s": began,
                "finished_s": ended,
            }
            for kind, name, began, ended in self.spans
        ]
        return {"calls": [], "steps": steps}


def weather_of(times: Times) -> Callable[[str, str], str]:
    """A tool that takes its time."""

    def weather(town: str, why: str = "") -> str:
        """The weather of a town next week."""
        with times.span("tool", f"weather in {town}"):
            time.sleep(SECONDS[town])
            return f"It is {'sunny' if town == 'Bolzano' else 'raining'} in {town}."

    return weather


@contextmanager
def server(*options: str) -> Iterator[str]:
    """The address of the user's server, or of one that writes the given answer."""
    if url := os.environ.get("WEFTLINE_BASE_URL"):
        yield url
        return
    calls = [
        json.dumps({"name": "weather", "arguments": {"town": town, "why": WHY}}) for town in SECONDS
    ]
    turn = "".join(f"<tool_call>\n{call}\n</tool_call>\n" for call in calls)
    rules = [{"when": "It is sunny in", "reply": ANSWER}, {"when": "", "reply": turn}]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.json"
        script.write_text(json.dumps(rules))
        words = ["--engine", "null", "--null-mode", "script", "--null-script", str(script)]
        words += ["--null-step-s", str(STEP_S), "--port", "0", *options]
        process = subprocess.Popen(
            [sys.executable, "-m", "weftline_server", "serve", *words],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()


Run = Callable[[str, bool, Times], str]  # an agent: the server, early tools or not, the times


def compare(run: Run, url: str) -> dict[str, tuple[str, Times]]:
    """The answer and the times with plain tools and with early ones."""
    found = {}
    for title, early in (("tools after the turn", False), ("early tools", True)):
        times = Times()
        found[title] = run(url, early, times), times
    return found


def drawn(runs: dict[str, tuple[str, Times]]) -> str:
    """The runs below each other. The model has the colour of generation."""
    picture = timeline.svg({title: times.graph() for title, (_, times) in runs.items()})
    model, colours = "><title>the model writes", timeline.PHASES
    return picture.replace(f'"{colours["step"]}"{model}', f'"{colours["generate"]}"{model}')


def main(run: Run) -> None:
    """Print both runs of an agent, or draw them into the file that the command names."""
    with server() as url:
        runs = compare(run, url)
    if sys.argv[1:] == ["--short"]:
        print(
            json.dumps({title: [answer, times.seconds] for title, (answer, times) in runs.items()})
        )
        return
    if sys.argv[1:]:
        Path(sys.argv[1]).write_text(drawn(runs))
        return
    for title, (answer, times) in runs.items():
        print(f"\n{title}: {answer}")
        print(timeline.text(times.graph()))
