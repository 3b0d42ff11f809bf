"""The null engine: it has no model and echoes prompts, follows a script, or emits a fixed length.

It takes text; a token is a word with the white space before it. Tests that need no model use it.
Its latency profile makes an op take as long as it would on real hardware.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TypedDict

from weftline_engine import api

_WORD = re.compile(r"\s*\S+|\s+\Z")

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


@dataclass(frozen=True, slots=True, kw_only=True)
class NullConfig:
    """Settings of a null engine.

    `script` holds pairs of a text that occurs in a prompt and the reply. An op whose prompt matches
    no pair fails. A script stands for a model under whatever constraint, so only with one does the
    engine take constraints: whoever writes the reply keeps them.
    """

    mode: NullMode = NullMode.ECHO
    script: tuple[tuple[str, str], ...] = ()
    latency: LatencyProfile = LatencyProfile()
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
        self._running: dict[str, asyncio.Task[None]] = {}
        self._ops: dict[str, api.Op] = {}  # ops that have not ended
        self._open: dict[str, api.Op] = {}  # ops that wait for the rest of their prompt
        self._sequence = 0

    async def start(self) -> api.Description:
        return api.Description(
            model=self._config.model,
            chat_template=CHAT_TEMPLATE,
            context_limit=self._config.context_limit,
            max_running=self._config.max_running,
            # It has no probabilities that top_k and the like could change.
            capabilities=(api.Capability.SAMPLING,),
            constraints=tuple(api.Constraint) if self._config.mode is NullMode.SCRIPT else (),
        )

    def submit(self, op: api.Op) -> None:
        self._ops[op.id] = op
        if op.open:
            self._open[op.id] = op
            return
        task = asyncio.create_task(self._run(op))
        self._running[op.id] = task
        task.add_done_callback(lambda _: self._ended(op, task))

    def feed(self, op: str, offset: int, part: api.Fed, last: bool) -> None:
        waiting = self._open.pop(op, None)
        if waiting is None:
            return  # the op was cancelled
        text = waiting.text or ""
        assert offset == len(text) and isinstance(part, str)
        self.submit(replace(waiting, text=text + part, open=not last))

    def update(self, op: str, hints: api.Hints) -> None:
        """Do nothing: hints are advice, and this engine uses none."""

    def cancel(self, op: str) -> None:
        if (found := self._ops.pop(op, None)) is None:
            return
        self._open.pop(op, None)
        if task := self._running.pop(op, None):
            task.cancel()
        message = "the call was cancelled"
        self._emit(api.Failed(**self._head(found), error="Cancelled", message=message))

    def retain(self, context: str, retention: api.Retention) -> None:
        """Do nothing: there is no KV cache."""

    def free(self, context: str) -> None:
        """Do nothing: there is no KV cache."""

    async def events(self) -> AsyncIterator[list[api.Event]]:
        while (events := await self._events.get()) is not None:
            yield events

    async def close(self) -> None:
        for task in list(self._running.values()):
            task.cancel()
        self._events.put_nowait(None)

    def _ended(self, op: api.Op, task: asyncio.Task[None]) -> None:
        if self._running.get(op.id) is task:
            del self._running[op.id], self._ops[op.id]

    async def _run(self, op: api.Op) -> None:
        started = time.monotonic()
        text = op.text or ""
        prompt_tokens = len(_WORD.findall(text))
        limit = self._config.context_limit
        if prompt_tokens >= limit:
            message = f"the prompt has {prompt_tokens} words, and the context holds {limit}"
            self._emit(api.Failed(**self._head(op), error="ContextTooLong", message=message))
            return
        pace = self._config.latency
        if pace.fill_s:
            await asyncio.sleep(pace.fill_s * prompt_tokens)
        filled = time.monotonic()
        reply = self._reply(op, text)
        if reply is None:
            message = "no rule of the null engine's script matches this prompt"
            self._emit(api.Failed(**self._head(op), error="EngineFailed", message=message))
            return
        words, reason = self._cut(op, reply)
        for offset, word in enumerate(words):
            if pace.step_s or pace.peer_s:
                await asyncio.sleep(pace.step_s + pace.peer_s * len(self._running))
            self._emit(api.Part(**self._head(op), offset=offset, tokens=(offset,), text=word))
        usage = api.Usage(
            prompt_tokens=prompt_tokens,
            cached_tokens=0,
            output_tokens=len(words),
            started=started,
            filled=filled,
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

    def _cut(self, op: api.Op, reply: str) -> tuple[list[str], api.FinishReason]:
        """Return the words of `reply` up to a stop string or max_tokens, and which it was."""
        if op.sampling is None:
            return [], api.FinishReason.FILLED
        cuts = [at for s in op.sampling.stop if (at := reply.find(s)) >= 0]
        if cuts:
            reply = reply[: min(cuts)]
        found = (match.group() for match in _WORD.finditer(reply))
        words = list(islice(found, op.sampling.max_tokens + 1))
        if len(words) > op.sampling.max_tokens:
            return words[:-1], api.FinishReason.LENGTH
        return words, api.FinishReason.STOP

    def _head(self, op: api.Op) -> _Head:
        self._sequence += 1
        return _Head(op=op.id, attempt=op.attempt, sequence=self._sequence, time=time.monotonic())

    def _emit(self, event: api.Event) -> None:
        self._events.put_nowait([event])
