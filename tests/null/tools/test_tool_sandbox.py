"""Tools that run code: what it can reach in a sandbox, and what happens where there is none."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.null.tools.conftest import FOLDER, Calls, running
from tests.waits import until
from weftline_engine.services.tools.config import Limits
from weftline_engine.services.tools.engine import SandboxUnavailable
from weftline_engine.services.tools.sandbox import (
    NOBODY,
    OWN_USERS,
    Sandbox,
    _counts_by_namespace,
    _has_own_users,
)
from weftline_engine.services.tools.sandbox_files import MOST_FILES
from weftline_server.commands.tool_tables import ToolTable, from_tables

LIMITS = Limits(memory_mb=1024, processes=20, file_mb=16, cpu_s=2)
OURS = Path("/proc/self/ns/pid")

# Serves on a port, which it prints, until its input is closed.
LISTENER = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True)
class World:
    """A folder with the tool, and what its code must not reach."""

    folder: Path
    secret: Path
    port: int
    pid: int

    @property
    def attacks(self) -> dict[str, str]:
        """Code that prints what it has reached."""
        secret, door = str(self.secret), str(self.folder / "door")
        environ = "open(f'/proc/{one}/environ').read()"
        return {
            "network": (
                "import socket\n"
                f"with socket.create_connection(('127.0.0.1', {self.port}), 5):\n"
                "    print('reached')"
            ),
            "socket in the file system": (
                "import socket\n"
                "with socket.socket(socket.AF_UNIX) as one:\n"
                f"    one.connect({str(self.secret.parent / 'service')!r})\n"
                "print('reached')"
            ),
            "home directory": f"print('reached' in open({secret!r}).read() and 'reached')",
            "symlink of the tools' folder": f"print(open({door!r}).read())",
            "symlink of its own": (
                "import os, tempfile\n"
                "link = tempfile.mktemp()\n"
                f"os.symlink({secret!r}, link)\n"
                "print(open(link).read())"
            ),
            "list of processes": (
                f"import os\nprint('reached' if os.path.exists('/proc/{self.pid}') else 'nothing')"
            ),
            "processes' environment": (
                "import os\n"
                "found = ''\n"
                "for one in os.listdir('/proc'):\n"
                "    if one.isdecimal():\n"
                "        try:\n"
                f"            found += {environ}\n"
                "        except OSError:\n"
                "            continue\n"
                "print('reached' if 'CANARY' in found else 'nothing')"
            ),
            "processes' files": (
                f"import os\nprint('reached' if os.listdir('/proc/{self.pid}/root/') else '')"
            ),
            "signals": f"import os\nos.kill({self.pid}, 0)\nprint('reached')",
            "the tools' own code": (
                f"open({str(self.folder / 'some_code.py')!r}, 'a').close()\nprint('reached')"
            ),
        }


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    folder, home = tmp_path / "tools", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    for one in (folder, *tmp_path.parents[:2], tmp_path):
        one.chmod(0o755)  # the calls may run as another user
    shutil.copy(FOLDER / "some_code.py", folder)
    secret = home / "secret"
    secret.write_text("reached")
    (folder / "door").symlink_to(secret)
    monkeypatch.setenv("HOME", str(home))
    listener = subprocess.Popen(
        [sys.executable, "-c", LISTENER],
        env={"CANARY": "canary-1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with listener, socket.socket(socket.AF_UNIX) as service:
        service.bind(str(home / "service"))
        service.listen()
        assert listener.stdout is not None
        yield World(folder, secret, int(listener.stdout.readline()), listener.pid)
        assert listener.stdin is not None
        listener.stdin.close()


def bubblewrap_works() -> bool:
    """Whether the machine has a bubblewrap that we support, and may use it."""
    arguments = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    if os.getuid() != 0:
        arguments += ["--unshare-user", "--disable-userns"]
    files = ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--size", "1", "--tmpfs"]
    try:
        return not subprocess.run(["bwrap", *arguments, *files, "/tmp", "true"]).returncode
    except OSError:
        return False


async def sandboxed(folder: Path) -> Calls:
    """An engine with a sandbox. Skips the test where the machine allows none."""
    if not bubblewrap_works():
        pytest.skip("bubblewrap 0.8 is not here, or may not be used")
    return await running(module="some_code", path=folder, limits=LIMITS, sandbox=True)


async def test_code_reaches_nothing_of_the_system(world: World) -> None:
    """Each attack succeeds without a sandbox, and fails in it."""
    calls = await sandboxed(world.folder)
    plain = await running(module="some_code", path=world.folder, limits=LIMITS)
    try:
        for name, code in world.attacks.items():
            assert (await plain.call("python", code=code))["content"] == "reached", name
            said = await calls.call("python", code=code)
            assert "reached" not in said["content"], (name, said)
            assert said["is_error"] or said["content"] == "nothing", (name, said)
    finally:
        for one in (calls, plain):
            await one.engine.close()
            await one.reading


# What code may do to the machine: the code, and what is told of it.
BOUNDED = (
    ("bytearray(64 << 30)", "MemoryError"),
    ("while True: pass", "ended without a result (signal 9)"),
    (
        "for number in range(5):\n    open(f'/tmp/{number}', 'wb').write(bytes(8 << 20))",
        "No space left on device",
    ),
    (
        "import os, time\n"
        "for number in range(500):\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(60)",
        "BlockingIOError",
    ),
    ("open('/new', 'w')", "Error"),
    ("open('/usr/new', 'w')", "Error"),
)
# Root bounds the number of files, and others where the kernel lets them mount.
OF_FILES = (
    (
        "import os\nfor number in range(20_000):\n    os.mknod(f'/tmp/{number}')",
        "No space left on device",
    ),
)


async def test_code_keeps_to_its_limits(world: World) -> None:
    """Memory, CPU time, disk and processes are bounded, and only /tmp can be written, by each call
    for itself. Ordinary code works."""
    calls = await sandboxed(world.folder)
    try:
        bounds_files = os.getuid() == 0 or Sandbox.of("math", LIMITS).mounts
        for code, said in (*BOUNDED, *(OF_FILES if bounds_files else ())):
            assert said in await calls.error("python", code=code)
        written = await calls.call("python", code="open('/tmp/a', 'w').write('a'); print('yes')")
        assert written["content"] == "yes"
        seen = await calls.call("python", code="import os; print(os.listdir('/tmp'))")
        assert "'a'" not in seen["content"]
    finally:
        await calls.engine.close()
        await calls.reading


async def test_a_fork_bomb_leaves_processes_to_others(world: World) -> None:
    """A call has begun. Three others start all processes that they may, and hold them. The first
    one starts its own.
    """
    if not (_has_own_users() if os.getuid() == 0 else _counts_by_namespace()):
        pytest.skip("it needs users to give, or Linux 5.14 and no root")
    calls = await sandboxed(world.folder)
    bomb = (
        "import os, time\n"
        "try:\n"
        "    while True:\n"
        "        if os.fork() == 0:\n"
        "            time.sleep(600)\n"
        "except BlockingIOError:\n"
        "    time.sleep(600)\n"
    )
    few = [
        "import os",
        "for _ in range(10):",
        "    if os.fork() == 0:",
        "        os._exit(0)",
        "print('ran')",
    ]
    try:
        other = calls.begin("python")
        await until(lambda: any(map(_is_of_a_call, Path("/proc").iterdir())))
        held = [calls.begin("python", {"code": bomb}) for _ in range(3)]
        await until(lambda: sum(map(_is_of_a_call, Path("/proc").iterdir())) >= 20)
        calls.engine.feed(other, 0, json.dumps({"code": "\n".join(few)}), True)
        said = await calls.value(other)
        assert said["content"] == "ran", said
        for id in held:
            calls.engine.cancel(id)
    finally:
        await calls.engine.close()
        await calls.reading


def _is_of_a_call(process: Path) -> bool:
    """Whether it is a process of a call: its user is nobody's, or its namespaces are others."""
    try:
        user = process.stat().st_uid if process.name.isdecimal() else 0
        if os.getuid() == 0:
            return user == NOBODY or user >= OWN_USERS
        return user == os.getuid() and (process / "ns/pid").readlink() != OURS.readlink()
    except OSError:
        return False


def fake(folder: Path, script: str) -> str:
    """A folder whose bwrap is a script."""
    folder.mkdir()
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(folder)


REFUSED = (
    (None, "there is no bwrap on the path: install bubblewrap 0.8 or later"),
    ("echo bubblewrap 0.4.1", "is bubblewrap 0.4.1: install bubblewrap 0.8 or later"),
    (
        '[ "$1" = --version ] && echo bubblewrap 0.9.0 && exit; echo no permission >&2; exit 1',
        "self-test failed: no permission. It needs user namespaces",
    ),
    (  # it isolates nothing
        '[ "$1" = --version ] && echo bubblewrap 0.9.0 && exit\n'
        'while [ "$1" != -- ]; do shift; done; shift; exec "$@"',
        "self-test failed: .*it sees processes of the system",
    ),
)


@pytest.mark.parametrize(("script", "said"), REFUSED)
async def test_without_a_sandbox_the_tools_do_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, said: str
) -> None:
    """The operator reads what to do. The code never runs on the host."""
    path = str(tmp_path) if script is None else fake(tmp_path / "bin", script)
    monkeypatch.setenv("PATH", path)
    with pytest.raises(SandboxUnavailable, match=said):
        await running(module="some_code", sandbox=True)


async def test_a_sandbox_that_is_gone_is_an_observation(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bubblewrap is removed while the server runs: a call ends as an error, and no code runs."""
    program = tmp_path / "bwrap"
    program.symlink_to(shutil.which("bwrap") or "/nowhere/bwrap")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    calls = await sandboxed(world.folder)
    try:
        program.unlink()
        assert "FileNotFoundError" in await calls.error("python", code="print(1)")
    finally:
        await calls.engine.close()
        await calls.reading


async def test_both_kinds_of_sandbox_pass_their_self_test(world: World) -> None:
    """A server of root changes the user inside. Any other has a user namespace."""
    calls = await sandboxed(world.folder)
    await calls.engine.close()
    await calls.reading
    made = Sandbox.of("math", Limits())
    made.check(lambda: None)
    replace(made, user=None).check(lambda: None)


# Prints what it finds, and what it can make. bubblewrap's process has the mounts from before.
MAKES_FILES = """
import json, os
made = {"of tools": os.listdir(os.path.dirname(__file__)), "at": os.getcwd()}
for folder in ("/tmp", "/dev/shm", "/proc/1/root/tmp", "/proc/1/root/dev/shm"):
    try:
        for number in range(20_000):
            os.mknod(f"{folder}/{number}")
    except OSError as error:
        made[folder] = [number, error.strerror]
try:
    open(__file__, "a")
except OSError as error:
    made["its code"] = error.strerror
print(json.dumps(made))
"""


def without_root(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """The sandbox of a module that makes files, as a server without root has it."""
    (folder / "makes_files.py").write_text(MAKES_FILES)
    monkeypatch.syspath_prepend(str(folder))
    made = Sandbox.of("makes_files", Limits(file_mb=16))
    return replace(made, user=None, own_users=False, mounts=False)


def test_without_root_the_number_of_files_is_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of tools below /tmp, where pytest makes it, is still read there. Nothing that
    bubblewrap has mounted before can be written.
    """
    if not bubblewrap_works():
        pytest.skip("bubblewrap 0.8 is not here, or may not be used")
    made = without_root(world.folder, monkeypatch).that_mounts()
    if not made.mounts:
        pytest.skip("the kernel allows no mounts in a user namespace")
    made.check(lambda: None)
    ran = subprocess.run(
        made.command("--check"), env=made.environment, capture_output=True, text=True, check=True
    )
    found = json.loads(ran.stdout)
    assert "some_code.py" in found["of tools"] and found["at"] == "/tmp"
    for folder in ("/tmp", "/dev/shm"):
        count, error = found[folder]
        assert error == "No space left on device" and MOST_FILES - 100 < count <= MOST_FILES
    for folder in ("/proc/1/root/tmp", "/proc/1/root/dev/shm"):
        assert found[folder] == [0, "Read-only file system"]
    assert found["its code"] == "Read-only file system"


def test_where_the_kernel_allows_no_mounts_the_sandbox_runs(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Ubuntu 24.04: bubblewrap's process has no right to mount. Bytes are bounded alone."""
    if not bubblewrap_works():
        pytest.skip("bubblewrap 0.8 is not here, or may not be used")
    made = without_root(world.folder, monkeypatch)
    script = tmp_path / "bwrap"
    left_out = "s/--cap-add CAP_SYS_ADMIN//"
    script.write_text(f'#!/bin/sh\nexec {made.program} $(echo "$@" | sed "{left_out}")\n')
    script.chmod(0o755)
    tried = replace(made, program=str(script)).that_mounts()
    assert not tried.mounts
    tried.check(lambda: None)


def test_a_table_asks_for_a_sandbox() -> None:
    """`sandbox` is off by default: the code of a plain tool is the operator's."""
    plain, isolated = from_tables([{"module": "a"}, {"module": "b", "sandbox": True}])
    assert isinstance(plain, ToolTable) and isinstance(isolated, ToolTable)
    assert (plain.sandbox, isolated.sandbox) == (False, True)
