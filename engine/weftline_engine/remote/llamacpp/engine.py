"""The llamacpp engine: sends each op to a slot of llama-server that `SlotBook` chooses.

A context is the list of its tokens. llama-server finds in a slot what a prompt has in common with
the tokens there, so a call that continues a context is sent whole to the slot that holds it. A
slot is written to a file and read into another one where that saves computing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from weftline_engine import api
from weftline_engine.own.model_texts import tokenizer_texts
from weftline_engine.remote.llamacpp import slot_requests
from weftline_engine.remote.llamacpp.config import LlamaServerConfig
from weftline_engine.remote.llamacpp.delimiters import Delimiters
from weftline_engine.remote.llamacpp.files import SavedState
from weftline_engine.remote.llamacpp.llama_child import LlamaChild
from weftline_engine.remote.llamacpp.llama_program import too_old
from weftline_engine.remote.llamacpp.slot_requests import Properties
from weftline_engine.remote.llamacpp.slots import Seat, SlotBook, SlotCall, most_stops
from weftline_engine.remote.llamacpp.state_cut import StateCut
from weftline_engine.remote.openai.endpoint import Endpoint, EndpointConfig, EndpointError
from weftline_engine.remote.openai.engine import served
from weftline_engine.remote.openai.remote import AnswerPiece, RemoteEngine, TokenCounts
from weftline_engine.remote.openai.scheduling import EndpointScheduler, headers
from weftline_engine.remote.tokenizer_probe import PROBE, probe_ids, tokenizer_in

log = logging.getLogger("weftline.llamacpp")

# An open prompt is filled early from this many new tokens on.
FILL_TOKENS = 128
# llama-server sends nothing while it computes a batch: 2,048 tokens of another call's prompt take
# half a minute and more on slow cores. Whether a child lives is seen by its process.
SILENT_S = 900.0
# Seconds that a running llama-server may take to say whether it writes slots.
ASK_S = 10.0


class LlamaEngine(RemoteEngine):
    """An `api.Engine` on llama-server's own HTTP interface."""

    def __init__(self, config: LlamaServerConfig) -> None:
        super().__init__(config.breaker)
        self._config = config
        self._child: LlamaChild | None = None
        self._watch: asyncio.Task[None] | None = None
        self._book = SlotBook(1)
        self._calls: dict[str, SlotCall] = {}  # of ops that have not ended, by op
        self._waits: dict[str, asyncio.Future[Seat]] = {}  # by op
        self._fills: set[asyncio.Task[None]] = set()  # of our own, for several calls
        self._writes: dict[int | str, asyncio.Task[None]] = {}  # the last by slot, and by file
        self._least_early: int | None = FILL_TOKENS
        self._looks = False
        self._limit = 0
        self._delimiters: Delimiters | None = None  # if states are kept at borders

    async def start(self) -> api.Description:
        """Start llama-server, or connect to a running one. Raises EngineDied."""
        where = self._config.connect
        if where is None:
            self._child = LlamaChild(self._config)
            await self._child.start()
            where = self._child.endpoint
        # llama-server ends a connection after some requests, also while the next one is sent.
        # In four of six rounds, one of twelve calls failed. And a kept connection occupies one of
        # its threads.
        where = replace(where, first_s=SILENT_S, idle_s=SILENT_S, keeps=False)
        self._endpoint = Endpoint(where)
        try:
            found = await self._properties(where)
            saves = self._child is not None or await self._saves_slots()
            if self._config.served is not None:
                await served(self._endpoint, self._config.served, "/v1/models")
            tokenizer = await self._tokenizer()
        except EndpointError as error:
            await self.close()
            raise api.EngineDied(f"the engine did not start: {error}") from error
        words = None if tokenizer is None else self._config.words
        self._pauses = words is not None
        if tokenizer is not None and self._child is not None:
            self._delimiters = Delimiters(tokenizer)
        self._limit = min(found.context, self._config.context or found.context)
        total = found.slots * found.context
        self._book = SlotBook(
            found.slots,
            most_saved=total if saves else 0,
            known=self._child is not None,
            cut=self._config.cut,
            most_stops=0
            if self._delimiters is None
            else most_stops(self._config.state_bytes, found.slots),
        )
        if not self._config.cut.copies:
            log.warning(
                "this model has sliding windows, which llama-server does not continue from a file: "
                "every slot computes a common beginning for itself. Where all keys fit in memory, "
                "--llama-arguments=--swa-full computes it once"
            )
        if self._child is not None:
            self._watch = asyncio.create_task(self._watch_child(self._child))
        return self._description(found, words)

    def submit(self, op: api.Op) -> None:
        self._ops[op.id] = op
        before = () if op.parent is None else self._book.contexts.tokens_of(op.parent)
        if before is None:
            self._refuse(op, "InvalidRequest", f"context {op.parent} does not exist")
            return
        if op.kind not in (api.Kind.FILL, api.Kind.GENERATE):
            self._refuse(op, "InvalidRequest", f"this engine runs no ops of kind {op.kind}")
            return
        op = op.behind(before)
        tokens = op.tokens or ()
        if not self._has_room(tokens):
            self._refuse(op, "ContextTooLong", self._too_long(tokens))
            return
        self._book.contexts.begin(op, tokens)
        self._calls[op.id] = SlotCall(
            op.id,
            tokens,
            op.salt,
            fills=op.kind == api.Kind.FILL,
            born=asyncio.get_running_loop().time() - op.hints.waited,
            hints=op.hints,
            open=op.open,
            left=0 if op.sampling is None else op.sampling.max_tokens,
            borders=op.guesses.borders,
        )
        super().submit(op)

    def feed(self, op: str, offset: int, part: api.Fed, last: bool) -> None:
        call, found = self._calls.get(op), self._ops.get(op)
        if call is None or found is None:
            return  # the op was cancelled
        assert isinstance(part, tuple), "this engine takes token ids"
        call.tokens = (*call.tokens, *part)
        call.open = not last
        if not self._has_room(call.tokens):
            del self._ops[op]
            if task := self._tasks.pop(op, None):
                task.cancel()
            self.fail(found, "ContextTooLong", self._too_long(call.tokens))
            return
        self._book.contexts.grow(found.context, call.tokens, ended=False)
        self._look()

    def update(self, op: str, hints: api.Hints) -> None:
        """Change the place of a call that waits for a slot."""
        if call := self._calls.get(op):
            call.hints = hints

    def fail(self, op: api.Op, error: str, message: str, *, retryable: bool = False) -> None:
        self._book.contexts.fail(op.context)
        super().fail(op, error, message, retryable=retryable)

    def retain(self, context: str, retention: api.Retention) -> None:
        self._book.contexts.retain(context, retention)
        self._look()

    def free(self, context: str) -> None:
        self._book.contexts.free(context)
        self._look()

    @property
    def child(self) -> LlamaChild | None:
        """The llama-server that was started, or None."""
        return self._child

    async def metrics(self) -> bytes:
        return await self.endpoint.metrics()

    async def close(self) -> None:
        for task in (self._watch, *self._fills, *self._writes.values()):
            if task is not None:
                task.cancel()
        await super().close()
        if self._child is not None:
            await self._child.close()

    async def _properties(self, where: EndpointConfig) -> Properties:
        """What llama-server says about itself. Raises EndpointError."""
        answers = []
        for path in ("/props", "/v1/models"):
            status, body = await self.endpoint.get(path)
            if status in (401, 403):
                raise EndpointError("EngineFailed", f"{where.url} refuses weftline's key")
            answers.append(slot_requests.object_of(body) if status == 200 else {})
        found = slot_requests.properties(*answers)
        if refusal := too_old(found.build):
            raise EndpointError("EngineFailed", refusal)
        return found

    async def _saves_slots(self) -> bool:
        """Whether a running llama-server writes slots to files."""
        try:
            async with asyncio.timeout(ASK_S):
                await self.endpoint.post("/slots/0?action=save", {"filename": "weftline-0.bin"})
        except (EndpointError, TimeoutError):
            log.warning(
                "this llama-server writes no slots: start it with --slot-save-path FOLDER/, and "
                "what several calls have in common is computed once"
            )
            return False
        return True

    async def _tokenizer(self) -> Tokenizer | None:
        """Our tokenizer, if it gives the ids that llama-server's gives."""
        if self._config.words is None:
            return None
        tokenizer = tokenizer_in(self._config.words)
        if probe_ids(tokenizer) == await self._tokenize(PROBE, special=False):
            return tokenizer
        log.warning(
            "the tokenizer that was read from the GGUF file differs from llama-server's, which is "
            "used: prompts are sent as text"
        )
        return None

    def _description(self, found: Properties, words: Path | None) -> api.Description:
        texts = {
            "chat_template": found.template or "",
            "bos_token": found.begin,
            "eos_token": found.end,
        }
        if words is not None:
            texts = tokenizer_texts(words)
        return api.Description(
            model=self._config.name or found.model,
            tokenizer=None if words is None else str(words / "tokenizer.json"),
            chat_template=texts["chat_template"] or None,
            bos_token=texts["bos_token"],
            eos_token=texts["eos_token"],
            context_limit=self._limit,
            kv_tokens=found.slots * found.context,
            max_running=found.slots,
            vocabulary=found.vocabulary,
            fill_tokens=FILL_TOKENS,
            wants_borders=words is not None and self._config.cut is not StateCut.ANYWHERE,
            capabilities=capabilities(child=self._child is not None, tokens=words is not None),
            constraints=slot_requests.CONSTRAINTS,
        )

    async def _watch_child(self, child: LlamaChild) -> None:
        self._outbox.end(api.EngineDied(await child.wait()))

    def _has_room(self, tokens: tuple[int, ...]) -> bool:
        return len(tokens) < self._limit

    def _too_long(self, tokens: tuple[int, ...]) -> str:
        return api.too_long(len(tokens), self._limit)

    def _refuse(self, op: api.Op, error: str, message: str) -> None:
        del self._ops[op.id]
        self.fail(op, error, message)

    def _ended(self, op: api.Op, task: asyncio.Task[None]) -> None:
        super()._ended(op, task)
        if op.id not in self._ops:
            self._calls.pop(op.id, None)
        self._look()

    def _look(self) -> None:
        """Give slots to calls that wait, when all verbs of this turn have come."""
        if not self._looks:
            self._looks = True
            asyncio.get_running_loop().call_soon(self._assign)

    def _assign(self) -> None:
        self._looks = False
        while (seat := self._book.next(self._least_early)) is not None:
            if seat.save is not None or seat.borders:
                self._write(seat.slot, seat.save, seat.borders)
            wait = self._waits.get(seat.call.op)
            if not seat.call.op:
                task = asyncio.create_task(self._fill(seat))
                self._fills.add(task)
                task.add_done_callback(self._fills.discard)
            elif wait is None or wait.done():  # it was cancelled in this turn
                self._abandon(seat)
            else:
                wait.set_result(seat)
        for slot, saved in self._book.swaps():
            self._write(slot, saved)
        self._report()

    def _report(self) -> None:
        for left in self._book.contexts.reports():
            if self._child is not None:
                head = self._outbox.head(left.op, left.attempt)
                self._outbox.put(
                    api.ContextMoved(
                        **head, context=left.context, residency=left.residency, tokens=left.tokens
                    )
                )

    def _leave(self, seat: Seat, tokens: tuple[int, ...] | None, *, computed: bool = False) -> None:
        """The call leaves its slot, which holds these tokens."""
        self._book.release(seat, tokens, computed=computed)
        self._look()

    def _learn(self, seat: Seat, cached: int) -> None:
        if lesson := self._book.learn(seat, cached):
            log.warning("%s", lesson)

    def _abandon(self, seat: Seat) -> None:
        """The call was cancelled before it began."""
        if seat.restore is not None:
            self._book.done(seat.restore)
        self._leave(seat, left_in(seat))

    async def _pieces(self, op: api.Op) -> AsyncIterator[AnswerPiece]:
        call = self._calls[op.id]
        if op.text is not None:
            call.tokens = await self._tokenize(op.text, special=op.chat is None)
            if not self._has_room(call.tokens):
                raise EndpointError("ContextTooLong", self._too_long(call.tokens))
        seat = await self._seat(call)
        left = left_in(seat)
        try:
            ready = await self._prepare(seat)
            left = left_in(ready)
            if call.fills:
                event = await self._filled(ready)
                self._learn(seat if ready.found else ready, event.cached)
                self._book.end(seat, op.context, call.tokens, event.held)
                found = found_by(call, event.cached)
                counts = TokenCounts(len(call.tokens), found, 0, call.lost)
                self._report()
                yield AnswerPiece(reason=api.FinishReason.FILLED, counts=counts, times=event.times)
                return
            made: list[int] = []
            async for piece, event in self._generated(op, ready, made):
                left = (*call.tokens, *made[:-1]) if made else left
                if event.reason is not None:
                    self._learn(seat if ready.found else ready, event.cached)
                    self._book.end(seat, op.context, (*call.tokens, *made), event.held)
                    self._report()
                yield piece
        finally:
            self._leave(seat, left)

    async def _seat(self, call: SlotCall) -> Seat:
        """Wait for a slot."""
        wait: asyncio.Future[Seat] = asyncio.get_running_loop().create_future()
        self._waits[call.op] = wait
        self._book.add(call)
        self._look()
        try:
            return await wait
        except asyncio.CancelledError:
            self._book.drop(call)
            if wait.done() and not wait.cancelled():
                self._abandon(wait.result())
            raise
        finally:
            if self._waits.get(call.op) is wait:
                del self._waits[call.op]

    async def _prepare(self, seat: Seat) -> Seat:
        """Write the slot and read it, as the seat says. Return the seat as it is then: if the file
        cannot be read, nobody knows what the slot holds."""
        if write := self._writes.get(seat.slot):
            await asyncio.wait({write})
        if seat.restore is None:
            return seat
        if write := self._writes.get(seat.restore.name):
            await asyncio.wait({write})
        is_read = False
        try:
            body = {"filename": seat.restore.name}
            await self.endpoint.post(f"/slots/{seat.slot}?action=restore", body)
            is_read = True
        except EndpointError as error:
            log.warning("a slot was not read from its file: %s", error)
        finally:
            self._book.done(seat.restore, lost=not is_read)
        if is_read:
            return replace(seat, restore=None)
        return replace(seat, found=0, restore=None, fresh=True)

    def _write(
        self, slot: int, saved: SavedState | None, borders: Sequence[SavedState] = ()
    ) -> None:
        """Write a slot to `saved`, then as far as each of `borders` goes to that file."""
        task = asyncio.create_task(self._written(slot, saved, borders))
        keys: list[int | str] = [slot]
        keys += (one.name for one in (saved, *borders) if one is not None)
        for key in keys:
            self._writes[key] = task
            task.add_done_callback(partial(self._forget_write, key))

    def _forget_write(self, key: int | str, task: asyncio.Task[None]) -> None:
        if self._writes.get(key) is task:
            del self._writes[key]

    async def _written(
        self, slot: int, saved: SavedState | None, borders: Sequence[SavedState]
    ) -> None:
        lost = [one for one in (saved, *borders) if one is not None]
        try:
            if saved is not None:
                await self._save(slot, saved)
                self._book.done(lost.pop(0))
            for border in borders:
                await self.endpoint.post("/completion", slot_requests.fill(border.tokens, slot))
                await self._save(slot, border)
                self._book.done(lost.pop(0))
        except EndpointError as error:
            log.warning("a slot was not written to a file: %s", error)
            self._book.stop_copying()
        finally:
            for one in lost:
                self._book.done(one, lost=True)

    async def _save(self, slot: int, saved: SavedState) -> None:
        await self.endpoint.post(f"/slots/{slot}?action=save", {"filename": saved.name})

    async def _fill(self, seat: Seat) -> None:
        """Fill a beginning for several calls, or for one whose prompt is not complete."""
        held, computed = left_in(seat), False
        try:
            seat = await self._prepare(seat)
            held = left_in(seat)
            event = await self._filled(seat)
            held, computed = seat.call.tokens[: event.held], True
        except EndpointError as error:
            # The calls themselves get the same error. Without these they do not wait for another.
            self._book.stop_copying()
            self._least_early = None
            if error.broken:
                self._count_failure(str(error))
        finally:
            self._leave(seat, held, computed=computed)

    async def _filled(self, seat: Seat) -> slot_requests.SlotEvent:
        call, texts = seat.call, self._stop_texts(seat.call)
        body = slot_requests.fill(call.tokens, seat.slot, fresh=seat.fresh, delimiters=texts)
        return slot_requests.read(await self.endpoint.post("/completion", body))

    def _stop_texts(self, call: SlotCall) -> list[str]:
        """The texts that stand at the stops of a call. Its stops are then where these texts are."""
        if self._delimiters is None or not call.stops:
            return []
        found = (self._delimiters.at(call.tokens, stop) for stop in call.stops)
        texts = dict(one for one in found if one is not None)
        call.stops = tuple(texts)
        return list(texts.values())

    async def _generated(
        self, op: api.Op, seat: Seat, made: list[int]
    ) -> AsyncIterator[tuple[AnswerPiece, slot_requests.SlotEvent]]:
        """The answer piece by piece. `made` grows by its tokens."""
        texts = self._stop_texts(seat.call)
        body, begin, end = slot_requests.generate(op, seat.call.tokens, seat, self._limit, texts)
        names = headers(EndpointScheduler.NONE, op)
        assert op.sampling is not None, "a generate has sampling parameters"
        ending = slot_requests.AnswerEnd(op.sampling, len(seat.call.tokens))
        stream = self.endpoint.stream("/completion", body, names, slot_requests.is_last)
        async with aclosing(stream) as events:  # llama-server stops when the stream is closed
            async for one in events:
                event = slot_requests.read(one)
                lacks = event.made > len(made) + len(event.tokens)
                if event.text and event.logprob is None and lacks:
                    event = await self._with_missing(event, event.made - len(made))
                event = ending.cut(event)
                made += event.tokens
                seat.call.left -= len(event.tokens)
                text = begin + event.text if event.text else ""
                begin = "" if event.text else begin
                if event.reason is api.FinishReason.STOP and not begin:
                    text += end
                counts = None
                if event.reason is not None:
                    if (times := event.times) is not None:
                        computed = len(seat.call.tokens) - event.cached
                        self._book.pace.note(computed, times.fill_s, event.made, times.generate_s)
                    found = found_by(seat.call, event.cached)
                    prompt, lost = len(seat.call.tokens), seat.call.lost
                    counts = TokenCounts(prompt, found, event.made, lost)
                yield slot_requests.piece(op, event, text, counts), event
                if event.reason is not None:
                    return

    async def _with_missing(
        self, event: slot_requests.SlotEvent, count: int
    ) -> slot_requests.SlotEvent:
        """The event with all its `count` tokens. llama-server tells only the last token of a
        character that takes several."""
        found = (await self._tokenize(event.text, special=False))[-count:]
        if len(found) != count or found[-1:] != event.tokens:
            return event
        return replace(event, tokens=found)

    async def _tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        body: dict[str, Any] = {"content": text, "add_special": special, "parse_special": True}
        return slot_requests.ids(await self.endpoint.post("/tokenize", body))


def left_in(seat: Seat) -> tuple[int, ...] | None:
    """What a slot surely holds before its call begins. Until a file was read, or another tenant's
    tokens were replaced, nobody knows."""
    if seat.fresh or seat.restore is not None:
        return None
    return seat.call.tokens[: seat.found]


def found_by(call: SlotCall, cached: int) -> int:
    """The tokens that llama-server found, less those that we have filled for this call."""
    return max(0, cached - call.filled)


def capabilities(*, child: bool, tokens: bool) -> tuple[api.Capability, ...]:
    """The capabilities of a llama-server. Where others use the server too, nobody knows what its
    slots hold. A server that gets text, not tokens, decides about its contexts by itself."""
    lacks = {api.Capability.CONSTRAINTS}  # no regex, and no structural tags
    if not child:
        lacks |= {api.Capability.REPORTS, api.Capability.SALT}
    if not tokens:
        lacks |= {api.Capability.TOKENS, api.Capability.CONTEXTS, api.Capability.FEED}
        lacks |= {api.Capability.RETENTION, api.Capability.LOGIT_BIAS}
    return tuple(one for one in api.Capability if one not in lacks)
