"""Whether a llama-server that is started keeps all keys of sliding windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest

from weftline_server.commands.default_model import Machine
from weftline_server.commands.engine_spec import EngineSpec
from weftline_server.commands.whole_windows import llama_words, whole_gib

GIB = 1 << 30
# Gemma 3 1B: 26 layers, one head of 256 for keys and values, 16 bits: 26 KiB a token.
GEMMA = {
    "general.architecture": "gemma3",
    "gemma3.block_count": 26,
    "gemma3.attention.head_count": 4,
    "gemma3.attention.head_count_kv": 1,
    "gemma3.attention.key_length": 256,
    "gemma3.attention.value_length": 256,
    "gemma3.embedding_length": 1152,
    "gemma3.context_length": 32_768,
    "gemma3.attention.sliding_window": 512,
}
PLAIN = {name: value for name, value in GEMMA.items() if "sliding" not in name}


@pytest.mark.parametrize(
    ("options", "values", "free", "gpu", "found"),
    [
        # 8 slots of 8,192 tokens, of 26 KiB each.
        ({}, GEMMA, 16 * GIB, 0, 1.625),
        ({"max_running": 4}, GEMMA, 16 * GIB, 0, 0.8125),
        ({"kv_tokens": 8192}, GEMMA, 16 * GIB, 0, 0.203125),
        ({}, GEMMA, 3 * GIB, 0, None),  # 1.625 GiB are more than 0.6 of what the weights leave
        ({}, GEMMA, 3 * GIB, 16 * GIB, 1.625),  # a GPU's memory counts in place of the machine's
        ({}, PLAIN, 16 * GIB, 0, None),  # there are no windows
        (
            {"llama_arguments": ("--swa-full",)},
            GEMMA,
            16 * GIB,
            0,
            None,
        ),  # the operator has said it
        ({"llama_arguments": ("--cache-ram=9",)}, GEMMA, 16 * GIB, 0, None),
        ({"llama_arguments": ("--threads", "4")}, GEMMA, 16 * GIB, 0, 1.625),
    ],
)
def test_windows_are_whole_where_they_fit(
    options: dict[str, Any], values: dict[str, Any], free: int, gpu: int, found: float | None
) -> None:
    """The memory is that of all slots."""
    spec = EngineSpec.of(engine="llamacpp", **options)
    assert whole_gib(spec, values, GIB, Machine(8, free, gpu)) == found


def test_the_operator_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line says what it costs, and how to have windows as llama-server keeps them."""
    file, spec = tmp_path / "gemma.gguf", EngineSpec.of(engine="llamacpp", kv_tokens=1024)
    writer = gguf.GGUFWriter(file, "gemma3")
    for name, value in GEMMA.items():
        if isinstance(value, int):
            writer.add_uint32(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert llama_words(spec, file) == ("--swa-full",)
    said = capsys.readouterr().err
    assert "(0.0 GiB at most for all slots)" in said and '"--cache-ram 8192"' in said
    assert llama_words(spec, Path(__file__)) == ()  # a file that we cannot read
