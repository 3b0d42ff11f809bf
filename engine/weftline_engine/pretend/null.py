"""The null engine: it has no model and echoes prompts, follows a script, or emits a fixed length.

The engine takes text; a token is a word with the white space before it. Tests that need no model
use it. The engine's latency profile makes an op take as long as it would on real hardware.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TypedDict

from weftline_engine import api
from weftline_engine.bookkeeping.output import StopScanner

_WORD = re.compile(r"\s*\S+|\s+\Z")
UNREAD_WORDS = 16  # words of a part of an unread op, as vLLM sends it

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


class NullMode(StrEnum):
    """The source of the engine's output."""

    ECHO = "echo"  # the rendered prompt
    SCRIPT = "script"  # the reply of the first rule whose text occurs in the prompt
    FIXED = "fixed"  # exactly max_tokens words


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyProfile:
    """Seconds that an op takes: `fill_s` for each prompt token, and for each output token `step_s`
    and `peer_s` times the number of running ops."""

    fill_s: float = 0.0
    step_s: float = 0.0
    peer_s: float = 0.0


NO_PAUSES = LatencyProfile()


@dataclass(frozen=True, slots=True, kw_only=True)
class NullConfig:
    """Settings of a null engine.

    `script` holds pairs of a text that occurs in a prompt and the reply. An op whose prompt matches
    no pair fails. A script stands for a model under whatever constraint, so only with one does the
    engine take constraints: whoever writes the reply keeps them.
    """

    mode: NullMode = NullMode.ECHO
    script: tuple[tuple[str, str], ...] = ()
    latency: LatencyProfile = NO_PAUSES
    model: str = "null"
    context_limit: int = 1 << 20
    max_running: int = 1024

    @staticmethod
    def script_from(path: Path) -> tuple[tuple[str, str], ...]:
        """Read a script from a JSON file: `[{"when": text, "reply": text}, …]`."""
        return tuple((rule["when"], rule["reply"]) for rule in json.loads(path.read_text()))


class _Head(TypedDict):
    op: str
    attempt: int
    sequence: int
    time: float


class NullEngine:
    """An `api.Engine` in the server's own process."""

    def __init__(self, config: NullConfig) -> None:
        self._config = config
        self._events: asyncio.Queue[list[api.Event] | None] = asyncio.Queue()
        self._made: list[api.Event] = []  # events since the last pause
        self._running: dict[str, tuple[api.Op, asyncio.Task[None]]] = {}
        self._open: dict[str, api.Op] = {}  # ops that wait for the rest of their prompt
        self._sequence = 0

    async def start(self) -> api.Description:
        return api.Description(
            model=self._config.model,
            chat_template=CHAT_TEMPLATE,
            context_limit=self._config.context_limit,
            max_running=self._config.max_running,
            # The null engine has no probabilities that such parameters could change.
            capabilities=(api.Capability.SAMPLING, api.Capability.UPDATES),
            constraints=tuple(api.Constraint) if self._config.mode is NullMode.SCRIPT else (),
        )

    def submit(self, op: api.Op) -> None:
        if op.open:
            self._open[op.id] = op
        elif self._config.latency == NO_PAUSES:
            for _ in self._work(op):
                pass
            self._send()
        else:
            task = asyncio.create_task(self._paced(op))
            self._running[op.id] = op, task

    def feed(self, op: str, offset: int, part: api.Fed, last: bool) -> None:
        waiting = self._open.pop(op, None)
        if waiting is None:
            return  # the op was cancelled
        text = waiting.text or ""
        assert offset == len(text) and isinstance(part, str)
        self.submit(replace(waiting, text=text + part, open=not last))

    def update(self, op: str, hints: api.Hints) -> None:
        """From the next part on send single words or long parts, as the hints say. The engine uses
        no others."""
        if op in self._open:
            self._open[op] = replace(self._open[op], hints=hints)
        elif op in self._running:
            found, task = self._running[op]
            self._running[op] = replace(found, hints=hints), task

    def cancel(self, op: str) -> None:
        found = self._open.pop(op, None)
        if op in self._running:
            found, task = self._running.pop(op)
            task.cancel()
        if found is not None:
            self._fail(found, "Cancelled", "the call was cancelled")
            self._send()

    def retain(self, context: str, retention: api.Retention) -> None:
        """Do nothing: there is no KV cache."""

    def free(self, context: str) -> None:
        """Do nothing: there is no KV cache."""

    async def events(self) -> AsyncIterator[list[api.Event]]:
        while (events := await self._events.get()) is not None:
            yield events

    async def close(self) -> None:
        for _, task in self._running.values():
            task.cancel()
        self._events.put_nowait(None)

    async def _paced(self, op: api.Op) -> None:
        for seconds in self._work(op):
            self._send()
            await asyncio.sleep(seconds)
        self._send()
        del self._running[op.id]

    def _work(self, op: api.Op) -> Iterator[float]:
        """Run an op. Yields the seconds of each of its pauses."""
        started = time.monotonic()
        text = op.text or ""
        prompt_tokens = len(_WORD.findall(text))
        limit = self._config.context_limit
        if prompt_tokens >= limit:
            self._fail(op, "ContextTooLong", api.too_long(prompt_tokens, limit))
            return
        pace = self._config.latency
        if pace.fill_s:
            yield pace.fill_s * prompt_tokens
        filled = time.monotonic()
        reply = self._reply(op, text)
        if reply is None:
            message = "no rule of the null engine's script matches this prompt"
            self._fail(op, "EngineFailed", message)
            return
        words, reason, stopped_by = self._cut(op, reply)
        offset = 0
        while offset < len(words):
            told, _ = self._running.get(op.id, (op, None))  # with its last hints
            some = words[offset : offset + (UNREAD_WORDS if told.hints.unread else 1)]
            if pace.step_s or pace.peer_s:
                yield len(some) * (pace.step_s + pace.peer_s * len(self._running))
            tokens = tuple(range(offset, offset + len(some)))
            part = api.Part(**self._head(op), offset=offset, tokens=tokens, text="".join(some))
            self._emit(part)
            offset += len(some)
        usage = api.Usage(
            prompt_tokens=prompt_tokens,
            cached_tokens=0,
            output_tokens=len(words),
            started=started,
            filled=filled,
            stopped_by=stopped_by,
        )
        self._emit(api.Finished(**self._head(op), reason=reason, usage=usage))

    def _reply(self, op: api.Op, text: str) -> str | None:
        if op.kind == api.Kind.FILL:
            return ""
        if self._config.mode is NullMode.ECHO:
            return text
        if self._config.mode is NullMode.FIXED:
            assert op.sampling is not None
            return " ".join(f"w{i}" for i in range(op.sampling.max_tokens))
        return next((reply for when, reply in self._config.script if when in text), None)

    def _cut(self, op: api.Op, reply: str) -> tuple[list[str], api.FinishReason, str]:
        """Return the words of `reply` up to a stop string, a stop token (the number of a word) or
        max_tokens, and which it was."""
        if op.sampling is None:
            return [], api.FinishReason.FILLED, ""
        scanner = StopScanner(op.sampling.stop, op.sampling.block)
        reply = scanner.whole(reply)
        found = map(re.Match.group, _WORD.finditer(reply))
        words = list(islice(found, op.sampling.max_tokens + 1))
        ends = [one for one in op.sampling.stop_token_ids if one < len(words)]
        if ends and min(ends) < op.sampling.max_tokens:
            return words[: min(ends)], api.FinishReason.STOP, ""
        if len(words) > op.sampling.max_tokens:
            return words[:-1], api.FinishReason.LENGTH, ""
        return words, api.FinishReason.STOP, scanner.stopped_by

    def _head(self, op: api.Op) -> _Head:
        self._sequence += 1
        return _Head(op=op.id, attempt=op.attempt, sequence=self._sequence, time=time.monotonic())

    def _fail(self, op: api.Op, error: str, message: str) -> None:
        self._emit(api.Failed(**self._head(op), error=error, message=message))

    def _emit(self, event: api.Event) -> None:
        self._made.append(event)

    def _send(self) -> None:
        """Pass on what was made since the last pause, as one step of an engine."""
        if self._made:
            self._events.put_nowait(self._made)
            self._made = []
