"""ToolEngine: runs tools, each call in a process of its own that a zygote forks.

An op of kind "tool" names its tool in `inputs`. Its `text` is the JSON object of the call's
arguments. More of it is fed to an open op while the model writes it, and the last part says that
the call is complete. Whatever a tool does, the op finishes with an observation.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from weftline.contract.arguments import ArgumentReader, MemberText, ObjectMember
from weftline_engine import api
from weftline_engine.services.tools import json_frames
from weftline_engine.services.tools.config import ToolsConfig
from weftline_engine.services.tools.tool_calls import BegunCalls, Observation, failed

TOOL = "tool"
START_S = 60.0  # to import the modules of the tools
# Longest wait for the exit code of a process whose socket has closed.
CODE_S = 1.0


class SandboxUnavailable(api.EngineDied):
    """The calls cannot be isolated here, so these tools do not run at all."""


@dataclass(eq=False)
class _Running:
    """An op that has not ended. `sealed` is set when the arguments are complete."""

    op: api.Op
    spec: dict[str, Any]
    started: float
    reader: ArgumentReader = field(default_factory=ArgumentReader)
    text: str = ""
    pieces: asyncio.Queue[dict[str, Any] | None] = field(default_factory=asyncio.Queue)
    work: asyncio.Task[None] | None = None
    code: asyncio.Future[int] | None = None

    @property
    def id(self) -> str:
        return f"{self.op.id}.{self.op.attempt}"


class ToolEngine:
    """An `api.Engine` of kind "tool". Pass the same `begun` to each incarnation of the engine."""

    def __init__(self, config: ToolsConfig, begun: BegunCalls) -> None:
        self._config = config
        self._begun = begun
        self._zygote: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._specs: dict[str, dict[str, Any]] = {}
        self._running: dict[str, _Running] = {}
        self._out: asyncio.Queue[list[api.Event] | None] = asyncio.Queue()
        self._sequence = 0
        self._closing = False

    async def start(self) -> api.Description:
        """Start the zygote and load the tools. Raises EngineDied with the module's error, and
        SandboxUnavailable."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._zygote = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "weftline_engine.services.tools.zygote",
                "--fd",
                str(theirs.fileno()),
                "--name",
                self._config.name,
                stdin=asyncio.subprocess.DEVNULL,
                env=self._config.environment(os.environ),
                pass_fds=(theirs.fileno(),),
            )
        self._control = ours
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            said = await asyncio.wait_for(loop.sock_recv(ours, 1 << 20), START_S)
            told: dict[str, Any] = {"failed": "it ended while loading"}
            if said:
                told = json.loads(said)
        except TimeoutError:
            told = {"failed": f"its modules did not load within {START_S:g} s"}
        if "failed" in told:
            await self.close()
            name = self._config.name
            if "sandbox" in told:
                raise SandboxUnavailable(f"the tools {name!r} have no sandbox: {told['failed']}")
            raise api.EngineDied(f"the tools {name!r} did not start: {told['failed']}")
        self._specs = {one["name"]: one for one in told["tools"]}
        loop.add_reader(ours, self._hear)
        return api.Description(
            model=self._config.name, kinds=(TOOL,), capabilities=(), tools=tuple(told["tools"])
        )

    def submit(self, op: api.Op) -> None:
        """Begin a call, or note that it must not begin."""
        self._tell(api.Accepted, op)
        spec = self._specs.get(str(op.inputs.get("tool")))
        if spec is None:
            self._finish(op, Observation("there is no such tool", is_error=True))
            return
        call = _Running(op, spec, time.monotonic())
        self._running[op.id] = call
        self._add(call, op.text or "", last=not op.open)
        if op.open and spec["effects"] == "once":
            return  # it begins when the model's turn has ended, with its last part
        call.work = asyncio.get_running_loop().create_task(self._work(call))

    def feed(self, op: str, offset: int, part: api.Fed, last: bool) -> None:
        """Append to the arguments of an open op."""
        call = self._running.get(op)
        if call is None or not isinstance(part, str):
            return
        self._add(call, part[max(0, len(call.text) - offset) :], last)
        if last and call.work is None:
            call.work = asyncio.get_running_loop().create_task(self._work(call))

    def _add(self, call: _Running, text: str, last: bool) -> None:
        call.text += text
        for event in call.reader.feed(text):
            if not call.spec["streams"]:
                continue
            match event:
                case ObjectMember(key, value):
                    call.pieces.put_nowait({"argument": [key, value]})
                case MemberText(key, more):
                    call.pieces.put_nowait({"text": [key, more]})
        if last:
            finish = {"finish": call.reader.value} if call.reader.is_closed else None
            call.pieces.put_nowait(finish)

    def update(self, op: str, hints: api.Hints) -> None:
        """Do nothing: calls do not wait for one another, so they have no order."""

    def cancel(self, op: str) -> None:
        """Kill the call's process, and what it has started."""
        call = self._running.pop(op, None)
        if call is None:
            return
        if call.work is not None:
            call.work.cancel()
        message = "the op was cancelled"
        self._tell(api.Failed, call.op, error="Cancelled", message=message)

    def retain(self, context: str, retention: api.Retention) -> None:
        """There are no contexts."""

    def free(self, context: str) -> None:
        """There are no contexts."""

    async def events(self) -> AsyncIterator[list[api.Event]]:
        while (events := await self._out.get()) is not None:
            yield events
        if not self._closing:
            raise api.EngineDied("the process of the tools ended by itself")

    async def close(self) -> None:
        """Kill every call, and end the zygote."""
        self._closing = True
        calls = [one.work for one in self._running.values() if one.work is not None]
        for work in calls:
            work.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        self._disconnect()
        if self._zygote is not None:
            try:
                await asyncio.wait_for(self._zygote.wait(), timeout=5)
            except TimeoutError:
                self._zygote.kill()
                await self._zygote.wait()

    async def _work(self, call: _Running) -> None:
        """Run one call to its end."""
        try:
            observation = await self._observe(call)
        except (json_frames.BadFrame, ValueError) as error:
            observation = failed(f"the tool sent no result: {error}", call.spec["effects"])
        except TimeoutError:
            what = f"the tool ran for more than {call.spec['timeout_s']:g} s and was stopped"
            observation = failed(what, call.spec["effects"])
        except (OSError, asyncio.IncompleteReadError):
            code = await self._code_of(call)
            reason = f"signal {-code}" if code < 0 else f"exit code {code}"
            what = f"the tool's process ended without a result ({reason})"
            observation = failed(what, call.spec["effects"])
        if self._running.pop(call.op.id, None) is call:
            self._finish(call.op, observation, call.started)

    async def _observe(self, call: _Running) -> Observation:
        effects = call.spec["effects"]
        if not self._begun.begin(call.op.id, call.op.attempt, call.text, effects):
            return failed("the call has begun before and was not begun again", effects)
        ours, theirs = socket.socketpair()
        call.code = asyncio.get_running_loop().create_future()
        with theirs:
            self._say({"start": call.id, "tool": call.spec["name"]}, theirs)
        reader, writer = await asyncio.open_connection(sock=ours)
        sending: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(None) as limit:
                sending = asyncio.create_task(_send(call, writer, limit))
                header = await reader.readexactly(json_frames.HEADER.size)
                body = await reader.readexactly(json_frames.length(header))
                return Observation.of(json_frames.decode(body))
        finally:
            if sending is not None:
                sending.cancel()
            self._say({"kill": call.id})
            writer.close()

    async def _code_of(self, call: _Running) -> int:
        """The exit code of the call's process; 0 if the zygote does not say it."""
        assert call.code is not None, "it has begun"
        with suppress(TimeoutError):
            return await asyncio.wait_for(call.code, CODE_S)
        return 0

    def _say(self, message: dict[str, Any], descriptor: socket.socket | None = None) -> None:
        if self._control is None:
            return
        data = json.dumps(message).encode()
        # A zygote that does not read is dead: `_hear` sees its end, or the watchdog stops it.
        with suppress(OSError):
            if descriptor is None:
                self._control.send(data)
            else:
                socket.send_fds(self._control, [data], [descriptor.fileno()])

    def _hear(self) -> None:
        """Note a process that has ended, or the end of the zygote."""
        assert self._control is not None, "it listens while there is one"
        try:
            data = self._control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._disconnect()
            return
        message = json.loads(data)
        for call in self._running.values():
            ended = call.id == message.get("ended") and call.code is not None
            if ended and call.code is not None and not call.code.done():
                call.code.set_result(message["code"])

    def _disconnect(self) -> None:
        if self._control is None:
            return
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        self._control = None
        if not self._closing:
            for call in self._running.values():
                if call.work is not None:
                    call.work.cancel()
            self._running.clear()
        self._out.put_nowait(None)

    def _finish(self, op: api.Op, observation: Observation, started: float | None = None) -> None:
        started = time.monotonic() if started is None else started
        usage = api.Usage(
            prompt_tokens=0, cached_tokens=0, output_tokens=0, started=started, filled=started
        )
        reason, value = api.FinishReason.STOP, observation.value()
        self._tell(api.Finished, op, reason=reason, usage=usage, value=value)

    def _tell(self, kind: type[api.Event], op: api.Op, **fields: Any) -> None:
        self._sequence += 1
        event = kind(
            op=op.id, attempt=op.attempt, sequence=self._sequence, time=time.monotonic(), **fields
        )
        self._out.put_nowait([event])


async def _send(call: _Running, writer: asyncio.StreamWriter, limit: asyncio.Timeout) -> None:
    """Send the parts of a call as they arrive. The call's time limit counts from the last part."""
    if call.spec["streams"]:
        writer.write(json_frames.encode({"warm": True}))
    while True:
        piece = await call.pieces.get()
        if piece is None or "finish" in piece:
            limit.reschedule(asyncio.get_running_loop().time() + call.spec["timeout_s"])
        if piece is None:  # the arguments are no JSON object
            piece = {"finish": {}} if not call.text.strip() else {"broken": True}
        writer.write(json_frames.encode(piece))
        await writer.drain()
