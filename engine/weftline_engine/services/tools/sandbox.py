"""The sandbox of tools that run code: each call sees its own network, processes and files.

bubblewrap makes it. A call can read only the system's programs and Python's path, and can write
only to an empty /tmp. bubblewrap itself is started without secrets in its environment, because the
call can see bubblewrap's process and read its environment.
"""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from weftline.contract.children import keep_only
from weftline_engine.services.tools import rlimits
from weftline_engine.services.tools.config import Limits

# The oldest version of bubblewrap that has --size and --disable-userns.
OLDEST = (0, 8)
OWN_COUNTS = (5, 14)  # of Linux: since then each user namespace counts its own processes
CHECK_S = 30.0  # seconds for a Python process to import the module, on a busy machine
NOBODY = 65534
# Users of the range that no system gives to anybody (systemd's table of user ids).
OWN_USERS, OWN_USERS_COUNT = 0x7000_0000, 0x0FFF_FFFF
# System folders that are links to folders of /usr on most systems.
_SYSTEM = ("/bin", "/lib", "/lib32", "/lib64", "/sbin")
_PASSED = ("LANG", "LC_ALL", "TZ")


class CannotSandbox(Exception):
    """The calls cannot be isolated here. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """How bubblewrap is called. `user` runs the calls if the server runs as root.

    The kernel counts processes by user, so one call that starts all it may would leave none to
    another. With `own_users` each call has a user of its own instead. Without root the kernel
    counts by user namespace, too: then `processes` is the limit of each call, set in its namespace.
    Root bounds the number of files in /tmp. Without root a call's process mounts it anew with a
    bound, where the kernel allows that in a user namespace: it `mounts`.
    """

    program: str
    module: str
    folders: tuple[Path, ...]
    environment: dict[str, str]
    size: int
    user: tuple[int, int] | None
    own_users: bool = False
    processes: int | None = None
    mounts: bool = False

    @staticmethod
    def of(
        module: str,
        limits: Limits,
        *,
        env: Sequence[str] = (),
        user: str | None = None,
        path: Sequence[str] | None = None,
    ) -> Sandbox:
        """The sandbox of a module, whose process sees the variables `env` of this one. `path` is
        Python's search path in it, by default this process's. Raises CannotSandbox.
        """
        path = sys.path if path is None else path
        folders = tuple(_folders(path))
        owner = None
        if os.getuid() == 0:
            found = pwd.getpwnam(user or "nobody")
            owner = found.pw_uid, found.pw_gid
        given = {name: os.environ[name] for name in (*_PASSED, *env) if name in os.environ}
        environment = {
            **given,
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": "/tmp",
            "TMPDIR": "/tmp",
            "PYTHONPATH": os.pathsep.join(one for one in path if one and Path(one).is_dir()),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONSAFEPATH": "1",
        }
        size = limits.file_mb << 20
        own_users = owner is not None and user is None and _has_own_users()
        alone = limits.processes if owner is None and _counts_by_namespace() else None
        program = _program()
        made = Sandbox(program, module, folders, environment, size, owner, own_users, alone)
        return made.that_mounts() if owner is None else made

    def that_mounts(self) -> Sandbox:
        """The sandbox without root whose /tmp has a bound of files, if the kernel allows it."""
        tried = replace(self, mounts=True)
        try:
            command = tried.command("--probe")
            said = subprocess.run(
                command, env=self.environment, capture_output=True, timeout=CHECK_S
            )
        except (OSError, subprocess.TimeoutExpired):
            return self  # its self-test says why it does not run
        return self if said.returncode else tried

    def running(self) -> int | None:
        """How many processes the user of the next call has. None if its own are limited inside."""
        if self.processes is not None:
            return None
        if self.own_users:
            return 0
        return rlimits.processes_of(os.getuid() if self.user is None else self.user[0])

    def command(self, *arguments: str) -> list[str]:
        """The command line of a call's process."""
        child = "weftline_engine.services.tools.sandbox_child"
        inner = [sys.executable, "-m", child, "--module", self.module, "--size", str(self.size)]
        if self.user is not None:
            uid, gid = self.user
            if self.own_users:
                uid = gid = OWN_USERS + secrets.randbelow(OWN_USERS_COUNT)
            inner += ["--user", f"{uid}:{gid}"]
        if self.processes is not None:
            inner += ["--processes", str(self.processes)]
        if self.mounts:
            inner.append("--mounts")
        return [self.program, *self._walls(), *self._files(), "--", *inner, *arguments]

    def enter(self, tool: str, descriptor: int) -> NoReturn:
        """Become the process of one call, with no descriptor but that of its socket."""
        keep_only(descriptor)
        os.set_inheritable(descriptor, True)
        command = self.command("--tool", tool, "--fd", str(descriptor))
        os.execve(self.program, command, self.environment)

    def check(self, limit: Callable[[], None] | None = None) -> None:
        """Start one sandbox, under the limits that `limit` sets. Raises CannotSandbox if it leaks.

        A process with several threads has no `limit`: between fork and exec it must run no Python.
        """
        try:
            made = subprocess.run(
                self.command("--check"),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=CHECK_S,
                preexec_fn=limit,
            )
        except subprocess.TimeoutExpired:
            raise CannotSandbox(f"its self-test took more than {CHECK_S:g} s") from None
        if made.returncode:
            said = (made.stderr or made.stdout).strip()[-500:]
            raise CannotSandbox(
                f"bubblewrap's self-test failed: {said or made.returncode}. It needs user "
                "namespaces, or a server of root with CAP_SYS_ADMIN; containers often allow neither"
            )

    def _walls(self) -> list[str]:
        """The options for namespaces of its own. If the server runs as root, the call becomes
        another user, without a user namespace. In a user namespace, the kernel would still see
        root, for which it does not limit the number of processes."""
        if self.user is None:
            nobody = str(NOBODY)
            walls = ["--unshare-all", "--unshare-user", "--disable-userns"]
            walls += ["--uid", nobody, "--gid", nobody]
        else:
            walls = [f"--unshare-{one}" for one in ("ipc", "pid", "net", "uts", "cgroup-try")]
            walls += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        if self.user is not None or self.mounts:
            # To bound the number of files in /tmp. It is given up before the call.
            walls += ["--cap-add", "CAP_SYS_ADMIN"]
        return [*walls, "--hostname", "tool", "--die-with-parent"]

    def _files(self) -> Iterator[str]:
        """The files of the sandbox. What is mounted later hides what came before."""
        temporary = ("--perms", "1777", "--size", str(self.size), "--tmpfs")
        yield from ("--ro-bind", "/usr", "/usr")
        for name in map(Path, _SYSTEM):
            if name.is_symlink():
                yield from ("--symlink", str(name.readlink()), str(name))
            elif name.is_dir():
                yield from ("--ro-bind", str(name), str(name))
        yield from ("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache")
        yield from ("--proc", "/proc", "--dev", "/dev")
        yield from (*temporary, "/dev/shm", "--remount-ro", "/dev", *temporary, "/tmp")
        # Parents that bubblewrap makes by itself can be entered by their owner alone.
        parents = {one for folder in self.folders for one in folder.parents[:-1]}
        for parent in sorted(parents - {Path("/tmp")}):
            yield from ("--perms", "0755", "--dir", str(parent))
        for folder in self.folders:
            yield from ("--ro-bind", str(folder), str(folder))
        if self.mounts:
            yield from ("--remount-ro", "/tmp", "--remount-ro", "/dev/shm")
        yield from ("--remount-ro", "/", "--chdir", "/tmp")


def _program() -> str:
    """The path of bubblewrap. Raises CannotSandbox."""
    wanted = "install bubblewrap {}.{} or later (Debian, Ubuntu, Fedora: package bubblewrap)"
    needed = wanted.format(*OLDEST)
    program = shutil.which("bwrap")
    if program is None:
        raise CannotSandbox(f"there is no bwrap on the path: {needed}, or leave sandbox out")
    said = subprocess.run([program, "--version"], env={}, capture_output=True, text=True).stdout
    found = re.search(r"(\d+)\.(\d+)", said)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        raise CannotSandbox(f"{program} is {said.strip()[:100] or 'broken'}: {needed}")
    return program


def _has_own_users() -> bool:
    """Whether this process may become any user. A container may have but the first 65,536."""
    for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines():
        first, _, count = map(int, line.split())
        if first <= OWN_USERS and first + count > OWN_USERS + OWN_USERS_COUNT:
            return True
    return False


def _counts_by_namespace() -> bool:
    """Whether the limit of processes that is set in a user namespace counts those in it alone.

    An older kernel counts all of the user's, whatever their namespaces.
    """
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return found is not None and (int(found[1]), int(found[2])) >= OWN_COUNTS


def _folders(path: Sequence[str]) -> Iterator[Path]:
    """The folders that Python reads. Raises CannotSandbox if one contains the home directory."""
    home = Path.home().resolve()
    named = {Path(one).absolute() for one in (sys.prefix, sys.base_prefix, *path) if one}
    taken = [Path("/usr")]
    for folder in sorted(named):
        if not folder.is_dir() or any(folder.is_relative_to(one) for one in taken):
            continue
        if home.is_relative_to(folder.resolve()):
            raise CannotSandbox(
                f"{folder} is on Python's path and holds the home directory: "
                "keep the tools and the programs in a folder of their own"
            )
        taken.append(folder)
        yield folder
