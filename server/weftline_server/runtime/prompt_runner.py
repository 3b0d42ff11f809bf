"""How the server runs kinds `fill` and `generate`: a rendered prompt goes out, text comes back."""

from __future__ import annotations

import hashlib
import time
from array import array
from collections.abc import Callable, Coroutine
from dataclasses import replace

from weftline.contract.errors import WeftlineError
from weftline_engine import api
from weftline_server.graph.primitive import Primitive, PrimitiveId
from weftline_server.lowering.bounds import is_large
from weftline_server.lowering.kinds.prompt import CHARS_PER_TOKEN, PromptBody
from weftline_server.lowering.kinds.turn import TurnBody
from weftline_server.lowering.result_values import (
    Transformed,
    constraint_on_text,
    token_logprobs,
    transformed,
)
from weftline_server.lowering.sampling_defaults import asked, is_free, sampling_params
from weftline_server.prompt.prompter import Payload, Prompter
from weftline_server.prompt.tool_format import triggers
from weftline_server.prompt.tool_parser import Delta
from weftline_server.runtime.answer_reader import Answers
from weftline_server.runtime.attempts import Attempt, Runner, hints, queued_at
from weftline_server.runtime.length_clues import clues
from weftline_server.runtime.prompts import body_of, parts_before, tokenised, tokenised_now
from weftline_server.runtime.workers import Workers
from weftline_server.schedule.engines.member import Work
from weftline_server.schedule.lengths import Clues, Expected, Lengths
from weftline_server.schedule.turns import Pace
from weftline_server.session import events as ev
from weftline_server.session.session import ServerSession

# The prefixes of a prompt with these lengths, in tokens, are compared with those of other prompts:
# a KV block first, then steps of a third to a half. With steps of two from 32 on, prefixes of 20
# and 60 tokens counted as 0 and 32.
PREFIX_TOKENS = (16, *(step << n for n in range(4, 14) for step in (2, 3)))
LAST_TURN = (
    1e8  # seconds of the monotonic clock: after all applications, and ten times it has 31 bits
)
EXPECTED_TOKENS = 128  # of a variable that is still empty


class PromptRunner(Runner):
    """Kinds `fill` and `generate`: a rendered prompt goes out, text comes back."""

    def __init__(
        self,
        prompter: Callable[[str], Prompter],
        salt: Callable[[str], str],
        without: frozenset[str],
        workers: Workers,
        pace: Pace,
        lengths: Lengths | None = None,
    ) -> None:
        super().__init__(salt, workers, pace)
        self.prompter = prompter
        self.answers = Answers(prompter)
        self._lengths = lengths
        self._affinity = "affinity" not in without

    def prepare(
        self, session: ServerSession, primitive: Primitive
    ) -> Payload | Coroutine[object, object, Payload]:
        parts = parts_before(session, body_of(primitive))
        prompter = self.prompter(primitive.resource)
        return tokenised_now(prompter, parts) or tokenised(
            prompter, parts, self._workers, session.tenant
        )

    def charge(self, primitive: Primitive, payload: Payload) -> int:
        return payload.size + asked(body_of(primitive).output)

    def work(
        self,
        session: ServerSession,
        primitive: Primitive,
        payload: Payload,
        attempt: Attempt,
        now: float,
    ) -> Work:
        id = PrimitiveId(session.id, primitive.id)
        prompter, size = self.prompter(primitive.resource), payload.size
        prompt_tokens = 0 if attempt.is_open else size
        sampling = sampling_params(body_of(primitive), prompt_tokens, prompter)
        # An agent comes back with the tools' results by itself.
        stays = session.stays or isinstance(body_of(primitive), TurnBody)
        if stays and body_of(primitive).call.offered_tools:
            # The session may come back with the tool's answer and continue this context.
            sampling = replace(sampling, pause_on=triggers(prompter.tool_format))
        if marks := self.answers.marks(primitive):
            sampling = replace(sampling, marks=marks)
        chat = payload.chat
        if chat is not None and chat.words is not None:
            chat = replace(chat, constraint=sampling.constraint)
            text_form = constraint_on_text(body_of(primitive).output)
            sampling = replace(sampling, constraint=text_form)
        salt = self._salt(session.tenant)
        known, expected = self._foretell(session, primitive, size, sampling.max_tokens)
        advice = hints(session, primitive, self._pace)
        if expected is not None:
            advice = replace(advice, expected_output=expected.likely)
        op = api.Op(
            id=str(id),
            attempt=attempt.number,
            kind=primitive.kind,
            context=str(id),
            tokens=payload.tokens,
            text=payload.text,
            chat=chat,
            sampling=sampling,
            salt=salt,
            open=attempt.is_open,
            guesses=guesses(session, primitive, payload, prompter.description),
            hints=advice,
        )
        queued = queued_at(session, primitive, attempt, now)
        most = sampling.max_tokens if expected is None else expected.most
        shared = prefixes(payload.tokens, salt) if self._affinity else ()
        means = meanings(session, primitive) if self._affinity else ()
        return Work(
            id,
            primitive.resource,
            op,
            queued,
            size + most,
            shared,
            means,
            stays,
            session.guessed,
            clues=known,
            expected=None if expected is None else expected.most,
        )

    def _foretell(
        self, session: ServerSession, primitive: Primitive, size: int, most: int
    ) -> tuple[Clues | None, Expected | None]:
        """What tells the length of an output behind `size` tokens, and the length, if known."""
        if self._lengths is None or not is_free(body_of(primitive).output):
            return None, None
        known = clues(body_of(primitive), size, session)
        return known, self._lengths.expect(self._salt(session.tenant), known, most)

    def fill(self, session: ServerSession, primitive: Primitive, tokens: tuple[int, ...]) -> api.Op:
        """The op that computes the beginning of a later prompt, after all calls."""
        id = f"{PrimitiveId(session.id, primitive.id)}+next"
        return api.Op(
            id=id,
            kind=api.Kind.FILL,
            context=id,
            tokens=tokens,
            salt=self._salt(session.tenant),
            hints=replace(hints(session, primitive, self._pace), turn=LAST_TURN),
        )

    def took(
        self, session: ServerSession, primitive: Primitive, usage: api.Usage, now: float
    ) -> None:
        """The primitive has ended on its engine: its model's pace is learned."""
        run = session.primitives[primitive.id]
        if run.step is not None and run.step.sent is not None:
            sent = run.step.sent
            filled = min(max(sent, usage.filled), now)
            prompt = run.work - run.output
            self._pace.learn(primitive.resource, prompt, filled - sent, run.output, now - filled)

    def part(self, primitive: Primitive, part: api.Part, now: float) -> ev.TextGenerated:
        """The event of a generated part of an output."""
        logprobs = token_logprobs(part, self.prompter(primitive.resource))
        text = self.answers.text(part, primitive)
        thoughts, text = self.answers.split(part.op, primitive, text, ends=False)
        is_read = body_of(primitive).is_read
        deltas = self.answers.read(part.op, primitive, text) if is_read else ()
        made = part.offset + len(part.tokens)
        return ev.TextGenerated(
            now=now,
            primitive=primitive.id,
            text=text,
            made=made,
            logprobs=logprobs,
            deltas=deltas,
            thoughts=thoughts,
        )

    def last(self, primitive: Primitive, finished: api.Finished) -> ev.TextGenerated | None:
        """The event of what the end of an answer completes, if anything."""
        text = self.answers.rest(finished.op, primitive)
        thoughts, text = self.answers.split(finished.op, primitive, text, ends=True)
        deltas: tuple[Delta, ...] = ()
        if body_of(primitive).is_read:
            read = self.answers.read(finished.op, primitive, text) if text else ()
            deltas = (*read, *self.answers.end(finished.op, primitive))
        if not text and not deltas and not thoughts:
            return None
        return ev.TextGenerated(
            now=finished.time, primitive=primitive.id, text=text, deltas=deltas, thoughts=thoughts
        )

    def result(
        self, session: ServerSession, primitive: Primitive, finished: api.Finished
    ) -> Transformed | Coroutine[object, object, Transformed]:
        body = body_of(primitive)
        value = self.said(session, primitive)
        if is_large(body.output.transforms, session.variables[primitive.writes[0]].text):
            return self._result(session.tenant, body, value)
        return transformed(body, value)

    def said(self, session: ServerSession, primitive: Primitive) -> object:
        """What an output has said: its text, or the message that calls tools. It ends with that.

        The text of an answer that was read is without its thoughts.
        """
        body, text = body_of(primitive), session.variables[primitive.writes[0]].text
        if not body.is_read:
            return text
        op = str(PrimitiveId(session.id, primitive.id))
        answer = self.answers.of(op)
        self.answers.forget(op)
        return answer.message() if body.call.offered_tools else answer.said

    async def _result(self, tenant: str, body: PromptBody, value: object) -> Transformed:
        """The value of an output whose transforms may take long."""
        began = time.perf_counter()
        try:
            value = await self._workers.apply(tenant, body.output.transforms, value)
        except WeftlineError as error:
            return Transformed(None, error, time.perf_counter() - began)
        return Transformed(value, None, time.perf_counter() - began)


def guesses(
    session: ServerSession, primitive: Primitive, payload: Payload, engine: api.Description
) -> api.Guesses:
    """What the server guesses of a prompt's tokens, for engines with this description."""
    contexts = references(session, primitive) if engine.drafts else ()
    call, returns = body_of(primitive).call, api.Return.SELDOM
    if session.stays and not session.guessed:
        returns = api.Return.NEVER
    elif call.offered_tools and call.tool_choice in (None, "auto"):
        returns = api.Return.OFTEN
    return api.Guesses(references=contexts, borders=payload.borders, returns=returns)


def references(session: ServerSession, primitive: Primitive) -> tuple[str, ...]:
    """The contexts of what the session ran last, the newest first: outputs of other variables that
    the prompt need not contain, such as those of siblings."""
    recent = (id for id in reversed(session.execution.recent) if id != primitive.id)
    return tuple(str(PrimitiveId(session.id, id)) for id in recent)


def meanings(session: ServerSession, primitive: Primitive) -> tuple[tuple[str, int], ...]:
    """(hash, estimated length) of the beginnings of a prompt that hold a variable of the session.

    The variable need not have a value yet. So calls that will share the value go to one engine
    before the value exists.
    """
    body = body_of(primitive)
    hashes = session.plan.prefixes.get(primitive.id, ())
    if body.is_constant or not hashes:
        return ()
    holders = {holder.name: holder for holder in body.holders}
    found: list[tuple[str, int]] = []
    chars, begun = 0, False
    for segment, hash in zip(body.before, hashes, strict=False):
        holder = holders.get(segment.input or segment.output or "")
        if holder is None:
            chars += len(segment.text or "")
        elif holder.semantic_var_id is None:
            chars += len(str(holder.value))
        else:
            begun = True
            text = session.variables[holder.semantic_var_id].text
            chars += len(text) or CHARS_PER_TOKEN * EXPECTED_TOKENS
        if begun:
            key = hashlib.blake2b(f"{session.id}/{hash}".encode(), digest_size=8)
            found.append((key.hexdigest(), chars // CHARS_PER_TOKEN))
    return tuple(found)


def prefixes(tokens: tuple[int, ...] | None, salt: str) -> tuple[tuple[str, int], ...]:
    """(hash, length) of the prefixes of `tokens`; equal where the KV cache can be shared."""
    if tokens is None:
        return ()
    digest = hashlib.blake2b(salt.encode(), digest_size=8)
    found, start = [], 0
    for length in PREFIX_TOKENS:
        if length > len(tokens):
            break
        digest.update(array("q", tokens[start:length]).tobytes())
        found.append((digest.hexdigest(), length))
        start = length
    return tuple(found)
