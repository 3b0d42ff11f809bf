"""FunctionEngine: runs one function of the operator in worker processes.

A worker serves one op at a time, and stays for the next one. If it is too slow, returns too much or
dies, its process group is killed and its op fails. If a worker has died, the server runs the op
again, unless the op may run only once. A worker in a sandbox serves one op only, so that no run can
see files or processes of another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from weftline_engine import api
from weftline_engine.services.functions.config import FunctionConfig
from weftline_engine.services.functions.function_process import FunctionProcess
from weftline_engine.services.functions.start import ProcessStart
from weftline_engine.services.tools.sandbox import CannotSandbox

START_S = 30.0  # to import the function and what it needs


class FunctionFailed(Exception):
    """A run failed; the message is for the user."""


class ProcessEnded(FunctionFailed):
    """The process ended before its answer. It may have been killed, so another run may succeed."""


class FunctionEngine:
    """An `api.Engine` of the kind `function`."""

    def __init__(self, config: FunctionConfig) -> None:
        self._config = config
        self._idle: list[FunctionProcess] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(config.workers)
        self._out: asyncio.Queue[api.Event | None] = asyncio.Queue()
        self._count = 0  # events
        self._start: ProcessStart | None = None

    async def start(self) -> api.Description:
        try:
            self._start = await asyncio.to_thread(ProcessStart.of, self._config)
            self._idle.append(await self._spawned())
        except FunctionFailed as error:
            raise api.EngineDied(str(error)) from None
        except CannotSandbox as error:
            name = self._config.name
            raise api.EngineDied(f"function {name!r} has no sandbox: {error}") from None
        return self._config.description

    def submit(self, op: api.Op) -> None:
        task = asyncio.get_running_loop().create_task(self._run(op))
        self._tasks[op.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(op.id, None))

    def cancel(self, op: str) -> None:
        if (task := self._tasks.get(op)) is not None:
            task.cancel()

    async def events(self) -> AsyncIterator[list[api.Event]]:
        while (event := await self._out.get()) is not None:
            yield [event]

    async def close(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for worker in self._idle:
            await worker.kill()
        self._idle.clear()
        self._out.put_nowait(None)

    def feed(self, op: str, offset: int, part: api.Fed, last: bool) -> None: ...
    def update(self, op: str, hints: api.Hints) -> None: ...
    def retain(self, context: str, retention: api.Retention) -> None: ...
    def free(self, context: str) -> None: ...

    async def _run(self, op: api.Op) -> None:
        async with self._places:
            began = time.monotonic()
            self._count += 1
            ended: dict[str, Any] = {"op": op.id, "attempt": op.attempt, "sequence": self._count}
            try:
                value = await self._answer(op.inputs.get("arguments", {}))
            except FunctionFailed as error:
                event: api.Event = api.Failed(
                    **ended,
                    time=time.monotonic(),
                    error="EngineFailed",
                    message=str(error),
                    # In a sandbox the limits end a process, and they would end the next one too.
                    retryable=isinstance(error, ProcessEnded) and not self._config.sandbox,
                )
            else:
                usage = api.Usage(
                    prompt_tokens=0, cached_tokens=0, output_tokens=0, started=began, filled=began
                )
                event = api.Finished(
                    **ended,
                    time=time.monotonic(),
                    reason=api.FinishReason.STOP,
                    usage=usage,
                    value=value,
                )
            self._out.put_nowait(event)
            if self._config.sandbox and not self._idle:  # the next run does not wait for Python
                with contextlib.suppress(FunctionFailed):  # it tries again, and says why
                    self._idle.append(await self._spawned())

    async def _answer(self, arguments: object) -> Any:
        """The result of one run. If it raises FunctionFailed, its worker has ended."""
        worker = await self._idle_worker() or await self._spawned()
        kept = False
        try:
            worker.ask(json.dumps(arguments).encode() + b"\n")
            answer = await self._line(worker, self._config.timeout_s)
            kept = not self._config.sandbox
        except ConnectionError:
            raise ProcessEnded(f"function {self._config.name!r} ended its process") from None
        finally:
            if kept:
                self._idle.append(worker)
            else:
                await worker.kill()
        if "error" in answer:
            raise FunctionFailed(f"function {self._config.name!r} failed: {answer['error']}")
        return answer["value"]

    async def _idle_worker(self) -> FunctionProcess | None:
        """A worker that waits for a run. Workers that were killed while they waited are skipped."""
        while self._idle:
            worker = self._idle.pop()
            if not worker.has_ended:
                return worker
            await worker.kill()
        return None

    async def _spawned(self) -> FunctionProcess:
        assert self._start is not None, "the engine has been started"
        own = not self._config.sandbox  # no log has a client's texts
        label = f"function {self._config.name}" if own else None
        worker = await FunctionProcess.start(
            self._start.command(), self._start.environment(), self._config.max_bytes, label
        )
        try:
            said = await self._line(worker, START_S)
            if "error" in said:
                raise FunctionFailed(f"function {self._config.name!r}: {said['error']}")
        except BaseException:
            await worker.kill()
            raise
        return worker

    async def _line(self, worker: FunctionProcess, within_s: float) -> dict[str, Any]:
        """The next line of a worker. Raises FunctionFailed if it is late, long or missing."""
        name = self._config.name
        try:
            async with asyncio.timeout(within_s):
                line = await worker.line()
            answer = json.loads(line)
            if b"\\u" in line:  # only an escape can be half of a surrogate pair
                json.dumps(answer, ensure_ascii=False).encode()
        except TimeoutError:
            raise FunctionFailed(
                f"function {name!r} took longer than {within_s:g} s: it was stopped"
            ) from None
        except json.JSONDecodeError:
            raise ProcessEnded(
                f"function {name!r} ended its process{await self._reason(worker)}"
            ) from None
        except UnicodeEncodeError:
            raise FunctionFailed(
                f"the result of function {name!r} has half of a surrogate pair, which is no text"
            ) from None
        except ValueError:  # asyncio's: the line is longer than the limit
            raise FunctionFailed(
                f"the result of function {name!r} has more than {self._config.max_bytes:,} bytes"
            ) from None
        assert isinstance(answer, dict), "a worker writes objects"
        return answer

    async def _reason(self, worker: FunctionProcess) -> str:
        """Where to read why a process has ended. A client reads what its own code printed."""
        if not self._config.sandbox:
            return ": the server's log has its messages"
        await worker.kill()
        last = worker.last_words.strip()
        return f", and printed at last {last!r}" if last else ""
