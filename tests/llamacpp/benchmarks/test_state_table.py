"""What weftline makes llama-server compute, beside llama-server alone and the ideal.

A part of the table of `weftline bench states`: three programs on two families of models.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.micro.states import OVER_PLAIN, Tokens, cell, ideal, template, tokenizer_of
from tests.llamacpp.random_ggufs import FAMILIES, gguf_of

AGENT = "agent of 30 turns"
PROGRAMS = ("6 chats of 3 turns", "two borders", "RAG, documents in other order", AGENT)
# With it llama-server keeps windows alone, and no file of a slot can be continued.
WINDOWS = "--cache-ram 8192"
HIT_SHARE = 0.95


@pytest.mark.parametrize(
    ("prompts", "tokens"),
    [
        ((), 0),
        (((1, 2, 3), (1, 2, 3)), 3),
        (((1, 2, 3), (1, 2), (1, 5, 6, 7)), 6),
        (((4, 5), (1, 2), (4, 6)), 5),
    ],
)
def test_every_distinct_beginning_counts_once(prompts: tuple[Tokens, ...], tokens: int) -> None:
    assert ideal(prompts) == tokens


@pytest.mark.parametrize("family", ["dense", "Qwen3.5"])
def test_programs_compute_no_more_than_llama_server_alone(
    family: str, smollm2_directory: Path, tmp_path: Path
) -> None:
    """Nor much more than every beginning once. What is reported as cached was not computed. The
    agent's prompts find what earlier prompts had."""
    file = gguf_of(FAMILIES[family](), smollm2_directory, tmp_path, template())
    words = tokenizer_of(smollm2_directory)
    cells = [cell(family, program, file, words) for program in PROGRAMS]
    assert [one for one in cells if not one.within] == []
    [agent] = [one for one in cells if one.program == AGENT]
    assert agent.hit_share >= HIT_SHARE


def test_windows_cost_no_more_than_with_llama_server_alone(
    smollm2_directory: Path, tmp_path: Path
) -> None:
    """Without files, each slot keeps the states where prompts part."""
    file = gguf_of(FAMILIES["Gemma 3"](), smollm2_directory, tmp_path, template())
    words = tokenizer_of(smollm2_directory)
    shared = cell("Gemma 3", "shared system prompt, 2 x 4", file, words, WINDOWS)
    assert shared.weftline <= OVER_PLAIN * shared.plain
