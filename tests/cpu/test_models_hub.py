"""hf:ORG/NAME, tested against our own Hub on loopback, which speaks the parts of the protocol that
we use.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from tests.blocks import random_rows
from weftline_engine.own.models import ModelUnavailable, gguf_file
from weftline_kernels.cpu.blocks import WeightType

COMMIT = "a" * 40


def safetensors() -> bytes:
    """One bf16 tensor of two numbers."""
    header = {"w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(4)


@dataclass
class Repository:
    """The files of org/tiny, and the requests that it got."""

    files: dict[str, bytes] = field(
        default_factory=lambda: {
            "config.json": b'{"model_type": "llama"}',
            "tokenizer.json": b"{}",
            "model.safetensors": safetensors(),
            "pytorch_model.bin": b"a pickle",
            "modeling_tiny.py": b"raise SystemExit",
        }
    )
    served: list[str] = field(default_factory=list)
    announced_sha256: str | None = None
    ranges: list[str | None] = field(default_factory=list)  # what requests of a GGUF asked for
    cuts: list[int] = field(default_factory=list)  # bytes after which the next answers end
    stalls: bool = False  # whether a connection that is cut stays open

    def describe(self) -> dict[str, Any]:
        """Return the response of the Hub's model API."""
        siblings = []
        for name, content in self.files.items():
            entry: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": "b" * 40}
            if name.endswith((".safetensors", ".gguf")):
                sha256 = self.announced_sha256 or hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"size": len(content), "sha256": sha256, "pointerSize": 130}
            siblings.append(entry)
        return {"id": "org/tiny", "modelId": "org/tiny", "sha": COMMIT, "siblings": siblings}


@pytest.fixture
def repository() -> Repository:
    """A complete repository with two unneeded files."""
    return Repository()


def answer(
    handler: BaseHTTPRequestHandler,
    repository: Repository,
    released: Event,
    content: bytes,
    etag: str,
) -> None:
    """Answer with all of `content` or the rest that a Range asks for, or cut it off."""
    asked = handler.headers.get("Range")
    if handler.path.endswith(".gguf"):
        repository.ranges.append(asked)
    begin, whole = 0, len(content)
    handler.send_response(206 if asked else 200)
    if asked:
        begin = int(asked.removeprefix("bytes=").partition("-")[0])
        handler.send_header("Content-Range", f"bytes {begin}-{whole - 1}/{whole}")
    content = content[begin:]
    handler.send_header("Content-Length", str(len(content)))
    handler.send_header("ETag", f'"{etag}"')
    handler.send_header("X-Repo-Commit", COMMIT)
    handler.end_headers()
    if handler.command != "GET":
        return
    cut = repository.cuts.pop(0) if repository.cuts and len(content) > 1 << 20 else None
    handler.wfile.write(content[:cut])
    if cut is not None:
        handler.close_connection = True
        if repository.stalls:
            released.wait(60)


@pytest.fixture
def hub(repository: Repository) -> Iterator[str]:
    """The address of a Hub that has only `repository`."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            resolve = f"/org/tiny/resolve/{COMMIT}/"
            if path.startswith("/api/models/org/tiny"):
                self.answer(json.dumps(repository.describe()).encode())
            elif path.startswith(resolve) and path.removeprefix(resolve) in repository.files:
                name = path.removeprefix(resolve)
                if self.command == "GET":
                    repository.served.append(name)
                self.answer(repository.files[name], etag=hashlib.sha1(name.encode()).hexdigest())
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()

        def answer(self, content: bytes, etag: str = "0") -> None:
            answer(self, repository, released, content, etag)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    released = Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    released.set()
    server.shutdown()
    server.server_close()


def command(model: str, endpoint: str, home: Path) -> dict[str, Any]:
    """How `weftline pull` is started with that Hub."""
    environment = os.environ | {"HF_ENDPOINT": endpoint, "WEFTLINE_HOME": str(home)}
    environment |= {"HF_HOME": str(home / "hf")}
    return {"args": [sys.executable, "-m", "weftline_server", "pull", model], "env": environment}


def pull(model: str, endpoint: str, home: Path) -> tuple[int, str, str]:
    """Run `weftline pull` with that Hub. Return exit code, standard output, last line of standard
    error.
    """
    done = subprocess.run(**command(model, endpoint, home), capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout.strip(), done.stderr.strip().rpartition("\n")[2]


def left_behind(home: Path) -> list[str]:
    """List the files of the cache except lock files."""
    return [path.name for path in (home / "models").glob("*") if path.suffix != ".lock"]


def test_a_hub_model_becomes_an_entry(hub: str, repository: Repository, tmp_path: Path) -> None:
    """Weights, config and tokenizer are downloaded; pickles and code are not. A second pull
    downloads nothing.
    """
    code, out, said = pull("hf:org/tiny", hub, tmp_path)
    assert code == 0, said
    assert sorted(path.name for path in Path(out).iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "weftline.json",
    ]
    assert sorted(repository.served) == ["config.json", "model.safetensors", "tokenizer.json"]
    source = json.loads((Path(out) / "weftline.json").read_text())["source"]
    assert source == {"name": "hf:org/tiny", "commit": COMMIT}
    assert pull("hf:org/tiny", "http://127.0.0.1:1", tmp_path)[:2] == (0, out)


def test_a_tokenizer_comes_without_weights(
    hub: str, repository: Repository, tmp_path: Path
) -> None:
    """A running endpoint has the weights. What is in the cache with them is not fetched again."""
    code = "from weftline_engine.own.models import words_directory as w; print(w('hf:org/tiny'))"
    how = command("", hub, tmp_path) | {"args": [sys.executable, "-c", code]}
    made = Path(subprocess.run(**how, capture_output=True, text=True, check=True).stdout.strip())
    assert made.name == "words--hf--org--tiny"
    assert sorted(repository.served) == ["config.json", "tokenizer.json"]
    assert pull("hf:org/tiny", hub, tmp_path)[0] == 0
    repository.served.clear()
    whole = Path(subprocess.run(**how, capture_output=True, text=True, check=True).stdout.strip())
    assert (whole.name, repository.served) == ("hf--org--tiny", [])


def test_a_model_that_the_hub_does_not_have(hub: str, tmp_path: Path) -> None:
    """The Hub responds with 404."""
    assert pull("hf:org/other", hub, tmp_path) == (
        1,
        "",
        "weftline: the Hub has no model org/other, or it is private: check the name, or set "
        "HF_TOKEN",
    )
    assert left_behind(tmp_path) == []


def test_no_hub(tmp_path: Path) -> None:
    """The connection is refused."""
    code, _, said = pull("hf:org/tiny", "http://127.0.0.1:1", tmp_path)
    assert code == 1
    assert said.startswith("weftline: hf:org/tiny cannot be downloaded from the Hugging Face Hub (")
    assert left_behind(tmp_path) == []


def test_weights_with_another_hash(hub: str, repository: Repository, tmp_path: Path) -> None:
    """The Hub announces one hash and serves other bytes."""
    repository.announced_sha256 = "0" * 64
    code, _, said = pull("hf:org/tiny", hub, tmp_path)
    assert (code, said) == (
        1,
        "weftline: model.safetensors does not match the Hub's hash: try again",
    )
    assert left_behind(tmp_path) == []


def test_a_repository_of_pickles(hub: str, repository: Repository, tmp_path: Path) -> None:
    """Without safetensors nothing is downloaded."""
    del repository.files["model.safetensors"]
    code, _, said = pull("hf:org/tiny", hub, tmp_path)
    assert (code, said) == (
        1,
        "weftline: hf:org/tiny has no safetensors: choose a model that has them",
    )
    assert repository.served == []
    assert left_behind(tmp_path) == []


def test_a_truncated_tokenizer(hub: str, repository: Repository, tmp_path: Path) -> None:
    """Downloaded files are validated like any directory."""
    repository.files["tokenizer.json"] = b'{"version":'
    code, _, said = pull("hf:org/tiny", hub, tmp_path)
    assert code == 1
    assert said.endswith("tokenizer.json is truncated or not JSON: fetch it again")
    assert left_behind(tmp_path) == []


@pytest.fixture
def gguf(write_gguf: Callable[..., Path], tmp_path: Path, repository: Repository) -> bytes:
    """A quantised model in the repository. It is padded to 25 MB, because the Hub's client writes
    10 MB at a time."""
    blocks = {"blk.0.attn_q.weight": (random_rows(WeightType.Q8_0, 32, 32), WeightType.Q8_0)}
    content = write_gguf(tmp_path / "tiny.gguf", blocks=blocks).read_bytes()
    content += bytes(25_000_000 - len(content))
    repository.files["tiny.Q8_0.gguf"] = content
    return content


def test_a_gguf_file_becomes_an_entry_and_is_served_offline(
    hub: str, repository: Repository, gguf: bytes, tmp_path: Path
) -> None:
    """The file lies in the entry, with what was read of it. Nothing is downloaded again, and the
    last line says how the model is used without a network."""
    code, out, said = pull("hf:org/tiny/tiny.Q8_0.gguf", hub, tmp_path)
    assert code == 0, said
    assert (Path(out) / "model.gguf").read_bytes() == gguf
    assert not (Path(out) / "model.gguf").is_symlink()
    assert {"blocks.json", "config.json", "tokenizer.json"} <= {p.name for p in Path(out).iterdir()}
    assert left_behind(tmp_path) == [Path(out).name]
    assert said == (
        "weftline: ready, and served without a network: weftline serve "
        f"hf:org/tiny/tiny.Q8_0.gguf. A machine without a network serves a copy of {out}"
    )
    assert pull("hf:org/tiny/tiny.Q8_0.gguf", "http://127.0.0.1:1", tmp_path)[:2] == (0, out)
    assert repository.ranges == [None]


def test_llama_server_reads_the_file_itself(hub: str, gguf: bytes, tmp_path: Path) -> None:
    """The file is an entry of its own, without what our engine reads of it, and is kept."""
    name = "hf:org/tiny/tiny.Q8_0.gguf"
    program = f"from weftline_engine.own.models import gguf_file; print(gguf_file({name!r}))"
    found = []
    for endpoint in (hub, "http://127.0.0.1:1"):
        environment = command(name, endpoint, tmp_path)["env"]
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        found.append(Path(done.stdout.strip()))
    assert found[0] == found[1]
    assert found[0].read_bytes() == gguf
    assert {path.name for path in found[0].parent.iterdir()} == {"model.gguf", "weftline.json"}
    with pytest.raises(ModelUnavailable, match=re.escape("name one of it, hf:org/tiny/FILE.gguf")):
        gguf_file("hf:org/tiny", home=tmp_path)


def test_a_cut_connection_goes_on_where_it_ended(
    hub: str, repository: Repository, gguf: bytes, tmp_path: Path
) -> None:
    """The connection breaks twice. Only what is missing is asked for again."""
    repository.cuts = [12_000_000, 12_000_000]
    code, out, said = pull("hf:org/tiny/tiny.Q8_0.gguf", hub, tmp_path)
    assert code == 0, said
    assert (Path(out) / "model.gguf").read_bytes() == gguf
    assert repository.ranges == [None, "bytes=10485760-", "bytes=20971520-"]


def test_a_killed_download_goes_on_with_the_next_pull(
    hub: str, repository: Repository, gguf: bytes, tmp_path: Path
) -> None:
    """The process ends by SIGKILL while 15 MB are missing. The next one asks for these alone, and
    the hash of the whole file is right."""
    repository.cuts, repository.stalls = [12_000_000], True
    killed = subprocess.Popen(
        **command("hf:org/tiny/tiny.Q8_0.gguf", hub, tmp_path), stderr=subprocess.DEVNULL
    )
    parts = tmp_path / "models"
    while not any(p.stat().st_size > 10_000_000 for p in parts.glob(".download-*/*.part")):
        assert killed.poll() is None
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    repository.stalls = False
    code, out, said = pull("hf:org/tiny/tiny.Q8_0.gguf", hub, tmp_path)
    assert code == 0, said
    assert repository.ranges == [None, "bytes=10485760-"]
    assert (Path(out) / "model.gguf").read_bytes() == gguf
    assert left_behind(tmp_path) == [Path(out).name]


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("hf:org/tiny/other.gguf", "hf:org/tiny has no other.gguf: it has tiny.Q8_0.gguf"),
        (
            "hf:org/tiny",
            "hf:org/tiny has GGUF files: write hf:org/tiny/FILE with one of tiny.Q8_0.gguf",
        ),
    ],
)
def test_the_files_of_a_repository_are_named(
    hub: str, repository: Repository, gguf: bytes, tmp_path: Path, model: str, sentence: str
) -> None:
    """A GGUF file is named in the name of its model."""
    del repository.files["model.safetensors"]
    assert pull(model, hub, tmp_path) == (1, "", f"weftline: {sentence}")
    assert left_behind(tmp_path) == []
