"""The process that has loaded the tools' modules, and forks one process for each call.

`python -m weftline_engine.services.tools.zygote --fd N`: a loop in one thread. Each message on the
socket is a JSON object. {"start": id, "tool": name} comes with the descriptor of a socket to the
call's process. {"kill": id} ends that process and what it has started. {"ended": id, "code": n}
goes back. When the socket closes, every call is killed.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import pwd
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from weftline.contract.children import keep_only
from weftline.sdk.toolkit import Found, tools_in
from weftline_engine.services.tools import rlimits
from weftline_engine.services.tools.call import serve_call
from weftline_engine.services.tools.config import IDLE, ToolsConfig, from_environment
from weftline_engine.services.tools.sandbox import CannotSandbox, Sandbox

MOST_MESSAGE = 1 << 16
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class Zygote:
    """The loop, and the calls whose processes run."""

    def __init__(
        self,
        control: socket.socket,
        config: ToolsConfig,
        tools: dict[str, Found],
        sandbox: Sandbox | None,
    ) -> None:
        self._control = control
        self._config = config
        self._tools = tools
        self._sandbox = sandbox
        self._calls: dict[int, str] = {}  # by process id
        self._wake, self._wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        """Serve until the socket closes."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._wake in ready:
                with suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                self._reap()
            if self._control.fileno() in ready and not self._obey():
                break
        for pid in list(self._calls):
            _kill(pid)
        self._kill_strays()

    def _obey(self) -> bool:
        """Perform one message. False if the socket is closed."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, MOST_MESSAGE, 1)
        except ConnectionResetError:  # the engine has closed it before it read all that we said
            return False
        if not data:
            return False
        message = json.loads(data)
        if "start" in message:
            self._start(message["start"], message["tool"], descriptors[0])
        else:
            for pid, id in self._calls.items():
                if id == message["kill"]:
                    _kill(pid)
        return True

    def _start(self, id: str, name: str, descriptor: int) -> None:
        pid = os.fork()
        if pid == 0:
            self._control.close()
            signal.set_wakeup_fd(-1)
            os.close(self._wake)
            os.close(self._wakes)
            _call(self._config, self._sandbox, self._tools[name], descriptor)
        os.close(descriptor)
        self._calls[pid] = id

    def _reap(self) -> None:
        ended = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if (id := self._calls.pop(pid, None)) is not None:
                ended = True
                _kill(pid)  # what it has left in its group
                code = os.waitstatus_to_exitcode(status)
                if self._sandbox is not None and code > 128:  # bubblewrap's word for a signal
                    code = 128 - code
                with suppress(OSError):  # the engine has gone: the loop ends next
                    self._control.send(json.dumps({"ended": id, "code": code}).encode())
        if ended:
            self._kill_strays()

    def _kill_strays(self) -> None:
        """End processes that have left the process group of their call. When their parent ends,
        they become children of this process."""
        children = Path(f"/proc/self/task/{os.getpid()}/children")
        with suppress(OSError):
            for pid in map(int, children.read_text().split()):
                if pid not in self._calls:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _call(config: ToolsConfig, sandbox: Sandbox | None, tool: Found, descriptor: int) -> NoReturn:
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        os.close(nothing)
        _limit(config, sandbox)
        _stand_back(config.niceness)
        if config.niceness == IDLE:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        connection = socket.socket(fileno=descriptor)
        if sandbox is not None:  # it returns only if it fails
            name = tool.spec.function.name
            serve_call(lambda: sandbox.enter(name, descriptor), connection)
        else:
            serve_call(lambda: tool, connection)
    finally:
        os._exit(0)


def _stand_back(niceness: int) -> None:
    """Let engines go first where this process and they need the same core. A process that is nicer
    already stays so."""
    own, niceness = os.getpriority(os.PRIO_PROCESS, 0), min(niceness, IDLE - 1)
    os.setpriority(os.PRIO_PROCESS, 0, max(own, niceness))
    # Where the kernel groups processes by their session, niceness counts within the group only: a
    # busy tool then took half of a core from the engine. Kernels without such groups lack the file,
    # and a user may change ten groups a second. It is an advice then, as it is without it.
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(niceness), encoding="ascii")


def _limit(config: ToolsConfig, sandbox: Sandbox | None) -> None:
    if sandbox is not None:  # a call changes the user inside
        rlimits.apply(config.limits, sandbox.running())
        return
    user = None if config.user is None else pwd.getpwnam(config.user)
    rlimits.apply(config.limits, rlimits.processes_of(os.getuid() if user is None else user.pw_uid))
    if user is not None:
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a new user resets it


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def main() -> None:
    """Load the modules, describe the tools, and serve."""
    parser = argparse.ArgumentParser(
        prog="weftline_engine.services.tools.zygote", description=__doc__
    )
    parser.add_argument("--fd", type=int, required=True, help="socket to the engine")
    parser.add_argument("--name", help="the engine's name; it tells processes apart in ps")
    fd = parser.parse_args().fd
    keep_only(fd)
    control = socket.socket(fileno=fd)
    control.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server decides when the calls end
    config = from_environment()
    if config.cores:
        os.sched_setaffinity(0, config.cores)
    sandbox = None
    try:
        tools = _load(config)
        if config.sandbox:
            sandbox = Sandbox.of(config.module, config.limits, env=config.env, user=config.user)
            made = sandbox
            sandbox.check(lambda: _limit(config, made))
        told: dict[str, Any] = {"tools": [found.spec.told() for found in tools.values()]}
    except CannotSandbox as error:
        control.send(json.dumps({"failed": str(error), "sandbox": True}).encode())
        sys.exit(1)
    except BaseException as error:  # whatever a module raises is the reason that the operator reads
        reason = f"{type(error).__name__}: {error}"
        control.send(json.dumps({"failed": reason[:2000]}).encode())
        sys.exit(1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    control.send(json.dumps(told).encode())
    Zygote(control, config, tools, sandbox).run()


def _load(config: ToolsConfig) -> dict[str, Found]:
    if config.path is not None:
        sys.path.insert(0, str(config.path))
    for name in config.preload:
        importlib.import_module(name)
    module = importlib.import_module(config.module)
    if getattr(module, "NEEDS_SANDBOX", False) and not config.sandbox:
        raise PermissionError(f"{config.module} runs code of the model: set sandbox = true")
    listed = list(tools_in(module))
    found = {one.spec.function.name: one for one in listed}
    if not listed:
        raise LookupError(f"{config.module} defines no tool: mark functions with @tool")
    if len(found) < len(listed):
        raise LookupError(f"{config.module} defines two tools of one name")
    if config.user is not None and os.getuid() != 0:
        raise PermissionError(f"only root can run tools as {config.user}")
    return found


if __name__ == "__main__":
    main()
