"""The time between the tokens of a text, with and without a busy tool beside it, in turns.

A null engine calls a tool that uses one core for some seconds. Meanwhile a model, or a second null
engine, writes a text. Both run in one server, as they would for two users. Only texts that began
and ended while the tool was running count as beside it.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import httpx

from bench.micro._tool_server import call, started

TURNS = 5
TOKENS = 128
STEP_S = 0.01  # of a word, where no model writes
FOLDER = Path(__file__).parent


@dataclass(slots=True)
class Gaps:
    """The seconds between the tokens of all texts of one kind."""

    seconds: list[float] = field(default_factory=list)

    def add(self, times: list[float]) -> None:
        """Add the gaps of a text whose tokens came at these times."""
        self.seconds += [after - before for before, after in pairwise(times)]

    def share(self, share: float) -> float:
        """The gap that this share of all gaps does not exceed."""
        return sorted(self.seconds)[int(share * (len(self.seconds) - 1))]


@dataclass(frozen=True, slots=True)
class Setting:
    """What serves: the `model` that writes (None: none), and the `niceness` and `seconds` of the
    tool. With `apart` the model computes on core 0, and the tool on core 1."""

    model: str | None = None
    niceness: int | None = None
    seconds: float = 20.0
    apart: bool = False


def table(setting: Setting, turns: int, tokens: int = TOKENS) -> str:
    """The table of a run. A first text of `tokens` tokens is not counted."""
    gaps = {"alone": Gaps(), "beside a busy tool": Gaps()}
    with (
        tempfile.TemporaryDirectory() as name,
        _served(Path(name), setting) as url,
        httpx.Client(base_url=url, timeout=600) as http,
    ):
        _text(http, tokens)
        for _ in range(turns):
            gaps["alone"].add(_text(http, tokens))
            with _busy(url):
                gaps["beside a busy tool"].add(_text(http, tokens))
    alone, beside = gaps.values()
    rows = ["| | texts | p50 between tokens | p99 |", "|---|---|---|---|"]
    for kind, found in gaps.items():
        p50, p99 = (f"{1000 * found.share(share):.2f} ms" for share in (0.5, 0.99))
        rows.append(f"| {kind} | {turns} | {p50} | {p99} |")
    p50, p99 = (f"{beside.share(share) / alone.share(share) - 1:+.1%}" for share in (0.5, 0.99))
    return "\n".join([*rows, f"| moved by | | {p50} | {p99} |"])


@contextmanager
def _busy(url: str) -> Iterator[None]:
    """A request whose tool is busy during the block.

    Raises SystemExit if the tool ends before the block does.
    """
    began, ended = threading.Event(), threading.Event()

    def run() -> None:
        body = {**_body("caller", "#busy", 4000), "weftline": {"run_tools": True}}
        try:
            with (
                httpx.Client(base_url=url, timeout=600) as http,
                http.stream("POST", "/v1/chat/completions", json=body) as answer,
            ):
                for line in answer.iter_lines():
                    if "calling" in line:  # said after the call: its tool has begun
                        began.set()
        finally:
            ended.set()
            began.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        began.wait()
        yield
        if ended.is_set():
            raise SystemExit("weftline bench tools: the tool ended too early: raise --seconds")
    finally:
        thread.join()


def _text(http: httpx.Client, tokens: int) -> list[float]:
    """When each token of a text came."""
    times: list[float] = []
    with http.stream("POST", "/v1/chat/completions", json=_body("writer", "#text", tokens)) as said:
        for line in said.iter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line[6:])["choices"]
                if choices and choices[0]["delta"].get("content"):
                    times.append(time.perf_counter())
    if len(times) < 2:
        raise SystemExit("weftline bench tools: the model wrote no text")
    return times


def _body(model: str, text: str, tokens: int) -> dict[str, object]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "temperature": 0.0,
        "stream": True,
    }


@contextmanager
def _served(folder: Path, setting: Setting) -> Iterator[str]:
    """A server with the tool, an engine that calls it, and one that writes."""
    script = [
        {"when": "done-work", "reply": "Good."},
        {"when": "#busy", "reply": call("work", seconds=setting.seconds) + "I am calling it. " * 4},
        {"when": "#text", "reply": "word " * TOKENS},
    ]
    (folder / "script.json").write_text(json.dumps(script))
    null = {
        "engine": "null",
        "null_mode": "script",
        "null_script": str(folder / "script.json"),
        "null_step_s": STEP_S,
    }
    torch: dict[str, object] = {"engine": "torch", "model": setting.model}
    writer = torch if setting.model else {**null}
    tool: dict[str, object] = {"module": "_some_tools", "path": str(FOLDER)}
    if setting.niceness is not None:
        tool["niceness"] = setting.niceness
    if setting.apart:
        tool["cores"] = [1]
        writer |= {"cores": [0]} if setting.model else {}
    tables: list[tuple[str, dict[str, object]]] = [
        ("engine", {**null, "name": "caller", "call_it": "caller"}),
        ("engine", {**writer, "name": "writer", "call_it": "writer"}),
        ("tool", tool),
    ]
    lines = []
    for kind, one in tables:
        lines += [f"[[{kind}]]", *(f"{key} = {json.dumps(value)}" for key, value in one.items())]
    (folder / "weftline.toml").write_text("\n".join(lines) + "\n")
    # With drafts a step has one token or several, as its measured gain says: so both times would be
    # of different steps.
    words = ["serve", "--port", "0", "--config", str(folder / "weftline.toml")]
    with started([*words, "--without", "drafting"]) as url:
        yield url
