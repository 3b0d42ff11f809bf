"""How many files of the product a small change touches, counted in the tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from weftline_engine.api import COUNTS, Usage
from weftline_server.commands.engine_spec import ENGINE_TAKERS

ROOT = Path(__file__).parents[1]
PRODUCT = ("client", "server", "engine", "kernels", "integrations")


def files_with(name: str) -> list[str]:
    """The modules of the product in which a name occurs as a whole word."""
    word = re.compile(rf"\b{name}\b")
    return [
        path.relative_to(ROOT).as_posix()
        for folder in PRODUCT
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not {".venv", "build", "tests"} & set(path.relative_to(ROOT).parts)
        and word.search(path.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize(
    "name",
    ["top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"],
)
def test_a_sampling_parameter_touches_at_most_four_files(name: str) -> None:
    """Counted are the modules that say a parameter's name, in code, texts or comments.

    These are the parameters that only change the next token's distribution, as a new one would. A
    row of the table, a field of the engines' contract and the sampler of our own engine need it.
    """
    found = files_with(name)
    assert "client/weftline/contract/parameters.py" in found
    assert len(found) <= 4, found


@pytest.mark.parametrize("name", ["drafted_tokens", "accepted_tokens"])
def test_a_count_of_an_engine_touches_at_most_five_files(name: str) -> None:
    """Counted are the modules that say the name of a count in an engine's `Usage`.

    Two bring it to a client's graph, the reference and the log: the engine that counts, and the
    field of `Usage` with its sentence. Three say it in words of their own: OpenAI's usage, a metric
    of Prometheus and the client's timeline. A new count needs the first two.
    """
    found = files_with(name)
    assert "engine/weftline_engine/api/engine_events.py" in found
    assert set(COUNTS) == {one for one in Usage.__annotations__ if one.endswith("_tokens")}
    assert len(found) <= 5, found


@pytest.mark.parametrize(
    "name",
    ["kv_fraction", "host_kv_tokens", "host_kv_gib", "endpoint_tools", "endpoint_scheduler"],
)
def test_a_setting_of_an_engine_stands_beside_it_alone(name: str) -> None:
    """Counted are the modules that say a setting's name. One declares it, and others of the same
    engine use it. The command line, its help and the checks of a file are made of the declaration.
    """
    found = files_with(name)
    assert name in ENGINE_TAKERS
    assert all(one.startswith("engine/") for one in found)
    assert len(found) <= 3, found
