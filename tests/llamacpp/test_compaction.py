"""A conversation is replaced by its summary, and llama.cpp computes nothing twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.compaction import check_langchain, check_llamaindex
from tests.served_app import listening
from weftline_engine.remote.llamacpp.config import LlamaServerConfig
from weftline_engine.remote.llamacpp.engine import LlamaEngine
from weftline_server.app import create_app
from weftline_server.config import ServerConfig

BLOCK = 16  # tokens; its slots keep every one


@pytest.fixture(scope="module")
def url(llama_config: LlamaServerConfig) -> Iterator[str]:
    config = replace(llama_config, context=4096)
    app = create_app(ServerConfig(), {"llama": lambda: LlamaEngine(config)})
    with listening(app, 120.0) as url:
        yield url


@pytest.mark.parametrize("reads", [True, False])
def test_langchain(reads: bool, url: str, smollm2_directory: Path) -> None:
    check_langchain(url, smollm2_directory, BLOCK, reads=reads)


async def test_llamaindex(url: str, smollm2_directory: Path) -> None:
    await check_llamaindex(url, smollm2_directory, BLOCK)
