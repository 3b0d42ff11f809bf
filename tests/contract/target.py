"""An engine under the contract suite, used through its verbs and events only."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weftline_engine import api
from weftline_server.prompt.prompter import Prompter
from weftline_server.prompt.render import PromptBefore, RenderedMessage

PREAMBLE = (
    "You are a careful assistant who answers every question briefly, precisely and politely. "
    "You write plain sentences, you never make lists, and you never repeat the question. "
) * 4
# The longest wait for an event. Engines share a machine that may be busy.
PATIENCE_S = 300


@dataclass
class Heard:
    """Everything that an engine has reported about one op."""

    parts: list[api.Part] = field(default_factory=list)
    finished: api.Finished | None = None
    paused: api.Paused | None = None
    failed: api.Failed | None = None
    events: list[api.Event] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)


class Target:
    """A started engine. `answers` maps each question to its greedy answer, token by token.

    `grain` is the number of tokens of which it finds all or none in its cache. `names_stop` says
    that it tells which stop string ended a text.
    """

    def __init__(
        self,
        engine: api.Engine,
        answers: Mapping[str, list[str]],
        *,
        chat: bool = True,
        render: Callable[[tuple[tuple[str, str], ...]], str] | None = None,
        grain: int = 1,
        names_stop: bool = True,
    ) -> None:
        self.engine = engine
        self.grain = grain
        self.names_stop = names_stop
        self.answers = answers
        self.questions = list(answers)
        self.sequences: list[int] = []
        self._chat = chat
        self._render = render
        self._heard: defaultdict[str, Heard] = defaultdict(Heard)
        self._news = asyncio.Condition()
        self._count = 0

    async def start(self) -> None:
        self.description = await self.engine.start()
        self._prompter = Prompter(self.description)
        self.listening = asyncio.create_task(self._listen())

    async def close(self) -> None:
        await self.engine.close()
        await asyncio.wait({self.listening}, timeout=PATIENCE_S)
        assert self.listening.done(), "its events did not end with it"

    def can(self, capability: api.Capability) -> bool:
        return capability in self.description.capabilities

    def op(self, question: str, *, system: str = PREAMBLE, **options: Any) -> api.Op:
        """A greedy op of 12 tokens that answers `question`, as the server would send it."""
        self._count += 1
        messages = (("system", system), ("user", question))
        text = "" if self._render is None else self._render(messages)
        turns = tuple(RenderedMessage(role, content) for role, content in messages)
        prompt = PromptBefore(text, turns if self._chat else None)
        payload = self._prompter.payload(prompt)
        name = options.pop("name", f"op{self._count}")
        own = {key: options.pop(key) for key in ("attempt", "open", "salt") if key in options}
        return api.Op(
            id=name,
            kind=api.Kind.GENERATE,
            context=f"{name}.context",
            tokens=payload.tokens,
            text=payload.text,
            chat=payload.chat,
            sampling=api.SamplingParams(**{"max_tokens": 12, "temperature": 0.0, **options}),
            **own,
        )

    def answer(self, question: str, count: int = 12) -> str:
        return "".join(self.answers[question][:count])

    async def until(self, op: str, enough: Callable[[Heard], bool]) -> Heard:
        """Wait until `enough` holds for the events of `op`."""
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(lambda: enough(self._heard[op]))
        return self._heard[op]

    async def end(self, op: str) -> Heard:
        return await self.until(
            op, lambda heard: bool(heard.finished or heard.paused or heard.failed)
        )

    async def run(self, *ops: api.Op) -> list[Heard]:
        """Submit these together, wait for all, and free their contexts."""
        for op in ops:
            self.engine.submit(op)
        found = [await self.end(op.id) for op in ops]
        for op in ops:
            self.engine.free(op.context)
        return found

    async def _listen(self) -> None:
        async for events in self.engine.events():
            async with self._news:
                for event in events:
                    self.sequences.append(event.sequence)
                    heard = self._heard[event.op]
                    heard.events.append(event)
                    match event:
                        case api.Part():
                            heard.parts.append(event)
                        case api.Finished():
                            heard.finished = event
                        case api.Paused():
                            heard.paused = event
                        case api.Failed():
                            heard.failed = event
                self._news.notify_all()
