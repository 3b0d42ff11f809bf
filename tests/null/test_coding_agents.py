"""`weftline serve --for coding-agent`: how many sessions fit, and how each client is started."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from weftline_server.commands.coding_agents import (
    KvShape,
    Room,
    lines_for,
    room_of,
    said_of,
    shape_of,
    sized,
)
from weftline_server.commands.default_model import Machine
from weftline_server.commands.engine_spec import EngineSpec

GIB = 1 << 30
# Qwen3 8B: 36 layers, 8 heads of 128 for keys and values, 16 bits.
QWEN3_8B = {
    "general.architecture": "qwen3",
    "qwen3.block_count": 36,
    "qwen3.attention.head_count": 32,
    "qwen3.attention.head_count_kv": 8,
    "qwen3.attention.key_length": 128,
    "qwen3.attention.value_length": 128,
    "qwen3.embedding_length": 4096,
    "qwen3.context_length": 40_960,
}


def test_the_shape_is_read_from_a_file() -> None:
    """Its settings tell the bytes of a token. Without them nothing is known."""
    assert shape_of(QWEN3_8B, 5 * GIB) == KvShape(36 * 8 * 256 * 2, 5 * GIB, 40_960)
    short = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.attention.head_count": 4,
        "llama.embedding_length": 64,
    }
    assert shape_of(short, 9) == KvShape(2 * 4 * 32 * 2, 9, 131_072)
    assert shape_of({"general.architecture": "llama"}, 9) is None


@pytest.mark.parametrize(
    ("free", "gpu", "room"),
    [
        (64 * GIB, 0, Room(4, 40_960)),  # the whole context, as often as it helps
        (24 * GIB, 0, Room(2, 40_960)),
        (10 * GIB, 0, Room(1, 21_504)),  # not even once
        (4 * GIB, 0, Room(1, 1024)),  # the weights alone do not fit
        (4 * GIB, 24 * GIB, Room(2, 40_960)),  # a GPU's memory counts in place of the machine's
    ],
)
def test_the_room_follows_from_the_memory(free: int, gpu: int, room: Room) -> None:
    """One session is as long as the model allows before there are two."""
    shape = shape_of(QWEN3_8B, 5 * GIB)
    assert shape is not None
    assert room_of(shape, Machine(8, free, gpu)) == room
    assert ("choose a smaller model" in said_of(room)) is (room.context < 32_768)


def test_what_the_operator_says_counts() -> None:
    """Slots and contexts of the command line stay."""
    spec = sized(EngineSpec.of(engine="llamacpp"), Room(2, 40_960))
    assert (spec.max_running, spec.endpoint.context_limit) == (2, 40_960)
    spec = sized(EngineSpec.of(engine="llamacpp", max_running=7, context_limit=99), Room(2, 40_960))
    assert (spec.max_running, spec.endpoint.context_limit) == (7, 99)


def test_each_line_is_one_that_a_shell_reads() -> None:
    """The address is the server's own for Anthropic's clients, and /v1 below it for the others."""
    lines = dict(line.split(": ", 1) for line in lines_for("http://127.0.0.1:8600", "qwen3-8b"))
    assert shlex.split(lines["Claude Code"]) == [
        "ANTHROPIC_BASE_URL=http://127.0.0.1:8600",
        "ANTHROPIC_AUTH_TOKEN=none",
        "ANTHROPIC_MODEL=qwen3-8b",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL=qwen3-8b",
        "claude",
    ]
    assert shlex.split(lines["Codex"])[-1] == (
        'model_providers.weftline={name="weftline",base_url="http://127.0.0.1:8600/v1",'
        'wire_api="responses"}'
    )
    assert "--model openai/qwen3-8b" in lines["aider"]
    assert "base URL http://127.0.0.1:8600/v1" in lines["opencode, Continue, Cline"]


def test_the_page_of_docs_has_the_same_lines() -> None:
    """The lines for programs that are started from a shell, with NAME for the model."""
    page = (Path(__file__).parents[2] / "docs" / "coding-agents.md").read_text(encoding="utf-8")
    for line in lines_for("http://127.0.0.1:8600", "NAME"):
        client, _, says = line.partition(": ")
        assert client in page
        assert "," in client or f"`{says}`" in page, client
