"""Random graphs on a real model in float32: they part only where two tokens tie."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.cpu.test_graph_exactness import random_graph
from tests.sizes import sized
from weftline.local import local_server
from weftline_server.config import OPTIMISATIONS

GRAPHS, FEWEST_GRAPHS = 10, 6  # the latter on a slow machine
AT_ONCE = 64  # as many requests as an engine runs at once
# Two logits closer than this may swap when the same float32 sums are added in another order.
TIE = 1e-3


@pytest.fixture(scope="module")
def plain_url(smollm2_directory: Path) -> Iterator[str]:
    """A server of the same model without our optimisations. It shares no cache with the first."""
    off = ",".join(sorted(OPTIMISATIONS))
    options = ("--dtype", "float32", "--policy", "request", "--without", off)
    with local_server(str(smollm2_directory), *options) as url:
        yield url


def run(url: str, calls: list[dict[str, Any]]) -> dict[str, str]:
    """Every value of the graph, submitted in one request with its last call first."""
    holders = [h for call in calls for h in call["placeholders"] if h["in_out"] == "out"]
    body = {
        "calls": calls[::-1],
        "get": [holder["semantic_var_id"] for holder in holders],
        "close": True,
    }
    answer = httpx2.post(f"{url}/v1/submit", json=body, timeout=None)
    assert answer.status_code == 200, answer.text
    values: dict[str, str] = answer.json()["values"]
    return values


def outputs(calls: list[dict[str, Any]], values: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Each output as a request of its own, with the value that it has to give. Its prompt is put
    together here from `values`."""
    for call in calls:
        holders = {h["name"]: h for h in call["placeholders"]}
        prompt = ""
        for segment in call["prompt"]:
            if "text" in segment:
                prompt += segment["text"]
                continue
            holder = holders[segment.get("input") or segment["output"]]
            value = values[holder["semantic_var_id"]]
            if "output" in segment:
                body = {"prompt": prompt, "logprobs": 2, **holder["sampling"]}
                yield {"body": body, "value": value}
            prompt += value


def gap(url: str, output: dict[str, Any]) -> float:
    """The gap between the two best logits where the output, run alone, differs; 0.0 if nowhere."""
    answer = httpx2.post(f"{url}/v1/completions", json=output["body"], timeout=None)
    choice = answer.json()["choices"][0]
    if choice["text"] == output["value"]:
        return 0.0
    return gap_where_they_part(choice, output["value"])


def gap_where_they_part(choice: dict[str, Any], value: str) -> float:
    """The gap between the two best logits at the first token that differs from `value`."""
    seen = ""
    for token, top in zip(
        choice["logprobs"]["tokens"], choice["logprobs"]["top_logprobs"], strict=True
    ):
        if not value.startswith(seen + token):
            best, second = sorted(top.values(), reverse=True)[:2]
            return float(best - second)
        seen += token
    raise AssertionError(f"{value!r} goes on where {seen!r} ends")


def test_graphs_part_only_where_two_tokens_tie(model_url: str, plain_url: str) -> None:
    """Chains, fans and diamonds, at least 16 tokens per output, against the calls one by one."""
    graphs = [random_graph(seed) for seed in range(sized(GRAPHS, FEWEST_GRAPHS))]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = threads.map(lambda calls: run(model_url, calls), graphs)
        alone = [
            o for calls, values in zip(graphs, found, strict=True) for o in outputs(calls, values)
        ]
        gaps = list(threads.map(lambda one: gap(plain_url, one), alone))
    assert max(gaps) < TIE, f"an output parts where the best logits are {max(gaps)} apart"
    assert len(gaps) > 4 * len(graphs)


def test_a_gap_is_found_where_texts_part() -> None:
    """The measure itself, on an answer that differs at its second token."""
    logprobs = {
        "tokens": ["a", "b", "c"],
        "top_logprobs": [{"a": -0.1, "x": -9.0}, {"b": -1.0, "y": -1.25}, {"c": 0.0, "z": -5.0}],
    }
    choice = {"text": "abc", "logprobs": logprobs}
    assert gap_where_they_part(choice, "ayc") == 0.25
    with pytest.raises(AssertionError):
        gap_where_they_part(choice, "abcd")
