"""Fills prompts before all their inputs exist, so that nothing waits that could have been filled.

A waiting call's known beginning goes to an engine as an open primitive; more follows as its inputs
stream in; the rest closes it when the last input is ready. Only ids that later text cannot change
are sent, and the whole prompt's ids are compared with them in the end: a surprise costs a refill,
never a wrong token.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from weftline_server.graph.primitive import PrimitiveId
from weftline_server.lowering.call import known_before
from weftline_server.prompt.prompter import Payload
from weftline_server.prompt.render import PromptBefore
from weftline_server.schedule.dispatcher import Dispatcher
from weftline_server.schedule.engines.slot import Work
from weftline_server.session.call import CallState
from weftline_server.session.session import Session

# A piece must be worth its message and its step: a block of KV cache, and the text of about one.
MIN_TOKENS = 16
MIN_CHARS = 64

# Marks where the unknown begins. No value can hold it, because nobody can guess it.
HOLE = f"\ue000{uuid.uuid4().hex}\ue000"

# Makes the work of a primitive from its id, its tokens so far, whether it is open, and its attempt.
MakeWork = Callable[[Session, PrimitiveId, Payload, bool, int], Work]


@dataclass(slots=True)
class _Early:
    """How far a primitive's prompt was known and has been sent."""

    sent: tuple[int, ...] = ()
    chars: int = 0
    attempt: int = 0
    busy: bool = False
    again: bool = False


class EarlyFill:
    """The open primitives of every session, and what of them is on an engine."""

    def __init__(self, make: MakeWork) -> None:
        self.dispatcher: Dispatcher  # set once, with the driver's
        self._make = make
        self._early: dict[PrimitiveId, _Early] = {}

    def may_advance(self, session: Session, id: PrimitiveId) -> bool:
        """Whether it needs a task to `advance`: not where the engine takes text, nor while another
        task is at it."""
        early = self._early.get(id)
        if early is not None and early.busy:
            early.again = True
            return False
        model = self.dispatcher.model(session.calls[id.call].node.call.model)
        return self.dispatcher.prompter(model).tokenizer is not None

    async def advance(self, session: Session, id: PrimitiveId) -> None:
        """Send what has become known since the last time; calls in the meantime are one more."""
        early = self._early.setdefault(id, _Early())
        if early.busy:
            early.again = True
            return
        early.busy = True
        try:
            early.again = True
            while early.again:
                early.again = False
                await self._step(session, id, early)
        finally:
            early.busy = False

    def complete(self, id: PrimitiveId, payload: Payload) -> int | None:
        """Close the open primitive with the rest of its ids: None. Else the attempt to queue."""
        early = self._early.pop(id, None)
        if early is None:
            return 0
        if early.sent:
            tokens, count = payload.tokens or (), len(early.sent)
            fits = tokens[:count] == early.sent and len(tokens) > count
            if fits and self.dispatcher.feed(str(id), tokens[count:], last=True):
                return None
            self.dispatcher.cancel(str(id))
        return early.attempt + 1

    def forget(self, id: PrimitiveId) -> None:
        self._early.pop(id, None)

    async def _step(self, session: Session, id: PrimitiveId, early: _Early) -> None:
        run = session.calls[id.call]

        def waiting() -> bool:
            return run.state is CallState.WAITING and run.index == id.index

        if not waiting():
            return
        prompt = known_before(session, run.node, id.index, HOLE)
        chars = _known_chars(prompt)
        if chars - early.chars < MIN_CHARS:
            return
        prompter = self.dispatcher.prompter(self.dispatcher.model(run.node.call.model))
        loop = asyncio.get_running_loop()
        ids = await loop.run_in_executor(None, prompter.stable_prefix, prompt, HOLE)
        if not waiting():
            return  # all of it became known while this part was tokenised
        early.chars = chars
        count = len(early.sent)
        if early.sent and ids[:count] != early.sent:
            self.dispatcher.cancel(str(id))
            early.sent, early.attempt, count = (), early.attempt + 1, 0
        if len(ids) - count < MIN_TOKENS:
            return
        if count == 0:
            work = self._make(session, id, Payload(ids, None), True, early.attempt)
            self.dispatcher.enqueue(work)
        elif not self.dispatcher.feed(str(id), ids[count:], last=False):
            early.sent, early.attempt = (), early.attempt + 1
            return
        early.sent = ids


def _known_chars(prompt: PromptBefore) -> int:
    """Characters before the hole."""
    texts = [prompt.text, *(turn.content for turn in prompt.messages or ())]
    known = 0
    for text in texts:
        before, hole, _ = text.partition(HOLE)
        known += len(before)
        if hole:
            break
    return known
