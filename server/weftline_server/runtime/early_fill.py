"""Fills prompts before all their inputs exist (Parrot section 5.1; prefill split in Teola).

The known beginning of a waiting prompt goes to an engine as an open op. More follows as its inputs
stream in, and the rest closes the op when the last input is ready. Only ids that later text cannot
change are sent. In the end the whole prompt's ids are compared with them: a difference costs a
refill, never a wrong token.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from weftline_server.graph.primitive import Primitive, PrimitiveId
from weftline_server.lowering.kinds.prompt import PromptBody
from weftline_server.prompt.prompter import Payload
from weftline_server.prompt.render import PromptBefore
from weftline_server.runtime.attempts import Attempt
from weftline_server.runtime.prompt_runner import PromptRunner
from weftline_server.runtime.prompts import known_before
from weftline_server.schedule.dispatcher import Dispatcher
from weftline_server.session.session import ServerSession
from weftline_server.session.task import RunState

# A smaller piece does not pay for its message and step.
MIN_TOKENS = 16
CHARS = 4  # of a token, about

# Marks where the unknown part begins. No value can contain it, because it cannot be guessed.
HOLE = f"\ue000{uuid.uuid4().hex}\ue000"


@dataclass(slots=True)
class _Early:
    """How much of a prompt was known, and how much of the prompt was sent."""

    sent: tuple[int, ...] = ()
    chars: int = 0
    attempt: int = 0
    busy: bool = False
    again: bool = False


class EarlyFill:
    """The open ops of every session."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        prompts: PromptRunner,
        clock: Callable[[], float],
        without: frozenset[str],
    ) -> None:
        self._dispatcher = dispatcher
        self._prompts = prompts
        self._now = clock
        self._is_on = "prefill_early" not in without
        self._early: dict[PrimitiveId, _Early] = {}

    def may_advance(self, session: ServerSession, primitive: str) -> bool:
        """Whether a task should call `advance`.

        The answer is False where the switch is off, for a kind without a prompt, for an engine that
        takes text, and while another task advances the primitive.
        """
        found = session.graph.primitives[primitive]
        if not self._is_on or not isinstance(found.body, PromptBody):
            return False
        early = self._early.get(PrimitiveId(session.id, primitive))
        if early is not None and early.busy:
            early.again = True
            return False
        return self._prompts.prompter(found.resource).tokenizer is not None

    async def advance(self, session: ServerSession, primitive: str) -> None:
        """Send the newly known part. Calls in the meantime cause one more pass."""
        early = self._early.setdefault(PrimitiveId(session.id, primitive), _Early())
        if early.busy:
            early.again = True
            return
        early.busy = True
        try:
            early.again = True
            while early.again:
                early.again = False
                await self._step(session, session.graph.primitives[primitive], early)
        finally:
            early.busy = False

    def complete(self, id: PrimitiveId, payload: Payload) -> int | None:
        """Finish the open op and return None, or return the attempt number to queue."""
        early = self._early.pop(id, None)
        if early is None:
            return 0
        if early.sent:
            tokens, count = payload.tokens or (), len(early.sent)
            fits = tokens[:count] == early.sent and len(tokens) > count
            if fits and self._dispatcher.feed(str(id), tokens[count:], last=True):
                return None
            self._dispatcher.cancel(str(id))
        return early.attempt + 1

    def forget(self, id: PrimitiveId) -> None:
        """The primitive was stopped."""
        self._early.pop(id, None)

    async def _step(self, session: ServerSession, primitive: Primitive, early: _Early) -> None:
        run = session.primitives[primitive.id]
        if run.state is not RunState.WAITING:
            return
        prompt = known_before(session, primitive, HOLE)
        prompter = self._prompts.prompter(primitive.resource)
        chars = _known_chars(prompt) + (prompter.begins if prompt.messages is not None else 0)
        if chars - early.chars < CHARS * prompter.description.fill_tokens:
            return  # too little for the engine, so the prompt is not tokenised anew
        loop = asyncio.get_running_loop()
        ids = await loop.run_in_executor(None, prompter.stable_prefix, prompt, HOLE, session.id)
        if run.state is not RunState.WAITING:
            return  # the rest became known while this part was tokenised
        early.chars = chars
        op, count = str(PrimitiveId(session.id, primitive.id)), len(early.sent)
        if early.sent and ids[:count] != early.sent:
            self._dispatcher.cancel(op)
            early.sent, early.attempt, count = (), early.attempt + 1, 0
        if len(ids) - count < MIN_TOKENS:
            return
        if count == 0:
            payload, attempt = Payload(ids, None), Attempt(early.attempt, is_open=True)
            work = self._prompts.work(session, primitive, payload, attempt, self._now())
            if not self._dispatcher.memory.early.may_fill(work.op):
                return
            self._dispatcher.enqueue(work)
        elif not self._dispatcher.feed(op, ids[count:], last=False):
            early.sent, early.attempt = (), early.attempt + 1
            return
        early.sent = ids


def _known_chars(prompt: PromptBefore) -> int:
    """Return the number of characters before the unknown part."""
    texts = [prompt.text, *(turn.content for turn in prompt.messages or ())]
    known = 0
    for text in texts:
        before, hole, _ = text.partition(HOLE)
        known += len(before)
        if hole:
            break
    return known
