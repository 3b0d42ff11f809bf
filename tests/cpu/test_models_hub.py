"""hf:ORG/NAME, tested against our own Hub on loopback, which speaks the parts of the protocol that
we use.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

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

    def describe(self) -> dict[str, Any]:
        """Return the response of the Hub's model API."""
        siblings = []
        for name, content in self.files.items():
            entry: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": "b" * 40}
            if name.endswith(".safetensors"):
                sha256 = self.announced_sha256 or hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"size": len(content), "sha256": sha256, "pointerSize": 130}
            siblings.append(entry)
        return {"id": "org/tiny", "modelId": "org/tiny", "sha": COMMIT, "siblings": siblings}


@pytest.fixture
def repository() -> Repository:
    """A complete repository with two unneeded files."""
    return Repository()


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
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{etag}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def pull(model: str, endpoint: str, home: Path) -> tuple[int, str, str]:
    """Run `weftline pull` with that Hub. Return exit code, standard output, last line of standard
    error.
    """
    environment = os.environ | {"HF_ENDPOINT": endpoint, "WEFTLINE_HOME": str(home)}
    environment |= {"HF_HOME": str(home / "hf")}
    command = [sys.executable, "-m", "weftline_server", "pull", model]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
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
    assert pull("hf:org/tiny", "http://127.0.0.1:1", tmp_path) == (0, out, "")


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
