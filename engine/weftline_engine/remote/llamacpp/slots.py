"""Decides which slot of llama-server runs each call, and says what is left of every context.

This module is pure. A slot holds the tokens of the last call that it ran, and a call computes only
what follows the beginning that it shares with them, as far as the model's state can be cut there.
One slot cannot use another's tokens. So where llama-server can write a slot to a file and read it
into another, a beginning that several calls share is computed once, written, and read into the
slots of the other calls. A slot that a call takes over is written before, if its tokens are likely
to be wanted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weftline_engine.api import Hints
from weftline_engine.bookkeeping.schedule.sequence import Rank
from weftline_engine.bookkeeping.schedule.step_order import rank, urgency
from weftline_engine.remote.border_choice import chosen
from weftline_engine.remote.common_tokens import common
from weftline_engine.remote.llamacpp.answer_pace import AnswerPace
from weftline_engine.remote.llamacpp.files import SavedFiles, SavedState
from weftline_engine.remote.llamacpp.slot_contexts import HeldTokens, SlotContexts
from weftline_engine.remote.llamacpp.state_cut import StateCut, after_prompt

# A shorter beginning is computed again rather than copied. A copy is a file and two requests, and
# a call may have to wait for it.
LEAST_COPY = 128
# States that are kept for the borders of one prompt, and the memory that they may take in all
# slots. One of LFM2 has 80 kB, of Qwen3.5 4B 50 MB.
MOST_STOPS = 8
STOP_BYTES = 1 << 30
# After so many misses, one after another, llama-server is believed to keep none.
MOST_MISSED = 3
# A file for the prompts that begin like a slot's last one may take this share of all files.
BORDER_SHARE = 1 / 8
# Files for each slot: of contexts that have lost theirs, and of borders. The sum of their tokens is
# bounded, too.
FILES_PER_SLOT = 8


@dataclass(eq=False, slots=True)
class SlotCall:
    """A call that waits or runs. Its `tokens` are the whole prompt, as far as it is known.

    `fills` says that it generates nothing. A call without an `op` is the engine's own: it fills a
    beginning up to the border where prompts part, or a prompt that is not complete. `filled` counts
    the tokens that such a fill has computed for this call. `borders` are those of `api.Guesses`,
    and the model's state is kept at `stops`. `left` are the tokens that the call may still
    generate. `lost` are tokens that are computed again, because a state that was held cannot be cut
    behind them.
    """

    op: str
    tokens: tuple[int, ...]
    salt: str
    fills: bool
    arrival: int = 0
    born: float = 0.0
    hints: Hints = field(default_factory=Hints)
    open: bool = False
    at_border: bool = False
    filled: int = 0
    borders: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()
    left: int = 0
    lost: int = 0
    rank: Rank = (False, 0.0, 0, 0.0, 0)


@dataclass(eq=False, slots=True, kw_only=True)
class LlamaSlot(HeldTokens):
    """A slot, and the call that it runs. `used` counts up with each call. A slot that ends at a
    border of prompts is written before a call goes on there. The state is kept at `stops` because
    prompts are likely to part there."""

    number: int
    user: SlotCall | None = None
    used: int = 0
    is_border: bool = False
    stops: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Seat:
    """A slot for a call, and what happens before the call runs there.

    First the slot is written to the file `save`. Then the slot goes back to a checkpoint for each
    of `borders`, and is written to that file. Then the file `restore` is read into it. Then it
    holds the first `found` tokens of the prompt. A `fresh` slot holds another tenant's tokens,
    which the call must not use. `at_stop` says that the state was kept there for such a call.
    """

    call: SlotCall
    slot: int
    found: int
    save: SavedState | None = None
    borders: tuple[SavedState, ...] = ()
    restore: SavedState | None = None
    fresh: bool = False
    at_stop: bool = False


@dataclass(frozen=True, slots=True)
class _Choice:
    """A way to run a call, and its cost in computed tokens."""

    cost: float
    used: int
    slot: LlamaSlot
    found: int
    saves: bool
    restore: SavedState | None


class SlotBook:
    """The slots, the calls that wait for one, and the contexts.

    `most_saved` is the number of tokens that files may hold; 0 where slots cannot be written. `cut`
    says where the model's states can be cut. llama-server keeps them at `most_stops` stops of each
    call.
    """

    def __init__(
        self,
        slots: int,
        *,
        most_saved: int = 0,
        known: bool = True,
        cut: StateCut = StateCut.ANYWHERE,
        most_stops: int = 0,
    ) -> None:
        salt = "" if known else None
        self._slots = [LlamaSlot(number=number, salt=salt, cut=cut) for number in range(slots)]
        self._waiting: dict[str, SlotCall] = {}
        self._files = SavedFiles(most_saved if cut.copies else 0, FILES_PER_SLOT * slots, cut)
        self.contexts = SlotContexts(self._slots, self._files)
        self.pace = AnswerPace()
        self._arrivals = 0
        self._clock = 0
        self._salt: str | None = None  # of the first call
        self._has_tenants = False
        self._most_stops = 0 if cut is StateCut.ANYWHERE else most_stops
        self._missed = 0  # calls, one after another, that found no state at a stop

    @property
    def copies(self) -> bool:
        """Whether slots are written to files."""
        return self._files.most > 0

    def add(self, call: SlotCall) -> None:
        self._salt = call.salt if self._salt is None else self._salt
        self._has_tenants |= call.salt != self._salt
        self._arrivals += 1
        call.arrival = self._arrivals
        self._waiting[call.op] = call

    def drop(self, call: SlotCall) -> None:
        if self._waiting.get(call.op) is call:
            del self._waiting[call.op]

    def next(self, least_early: int | None = None) -> Seat | None:
        """The next call to run and its slot, or None if none can begin now.

        The most urgent call goes first. It waits if the longest part of its prompt is being
        computed for another call that ends soon. If no other call waits, an open prompt is filled
        as far as it is known, from `least_early` new tokens on.
        """
        idle = [slot for slot in self._slots if slot.user is None]
        if not idle or not self._waiting:
            return None
        calls = list(self._waiting.values())
        rank(calls)
        calls.sort(key=urgency)
        for call in calls:
            best = self._best(call)
            if self._is_coming(call, best):
                continue
            if call.open:
                if least_early is None or len(call.tokens) - 1 - best < least_early:
                    continue
                early = _part(call, len(call.tokens) - 1)
                return self._sit(early, self._choose(early, idle), ())
            others = [one for one in calls if one is not call and one.salt == call.salt]
            shared = self._border_of(call, best) or self._shared(call, others)
            if self.copies and best + LEAST_COPY <= shared < len(call.tokens):
                seed = _part(call, shared, at_border=True)
                choice = self._choose(seed, idle)
                call.filled += shared - choice.found
                call.lost = self._lost(call, choice.found)
                return self._sit(seed, choice, ())
            del self._waiting[call.op]
            choice = self._choose(call, idle)
            call.lost = call.lost or self._lost(call, choice.found)
            return self._sit(call, choice, others)
        return None

    def end(self, seat: Seat, context: str, tokens: tuple[int, ...], held: int) -> None:
        """The call of `seat` has ended: its slot holds the first `held` of `tokens`, which are
        those of `context`."""
        self.release(seat, tokens[:held], computed=True)
        self.contexts.grow(context, tokens, ended=True)

    def release(
        self, seat: Seat, tokens: tuple[int, ...] | None, *, computed: bool = False
    ) -> None:
        """The slot of `seat` is idle and holds `tokens`. Without them it may still hold another
        tenant's, so the next call begins afresh. The prompt may be `computed`, which leaves
        checkpoints. May be called again."""
        slot = self._slots[seat.slot]
        if slot.user is seat.call:
            slot.user = None
            kept, stops = slot.checkpoints, seat.call.stops
            if computed:
                kept = after_prompt(kept, seat.found, len(seat.call.tokens), stops)
                slot.stops = (*slot.stops, *stops)
            self._set(slot, tokens or (), None if tokens is None else seat.call.salt, kept)
            slot.is_border = computed and seat.call.at_border and slot.cut.fills_first

    def learn(self, seat: Seat, cached: int) -> str:
        """llama-server found `cached` tokens of the prompt. What the log says, if states are not
        kept where the book believed."""
        if seat.at_stop:
            return self._learn_stop(seat.found - cached < LEAST_COPY)
        if (cut := self._other_cut(seat, cached)) is None:
            return ""
        self._files.cut = cut
        for slot in self._slots:
            slot.cut = cut
        if not cut.copies:
            self.stop_copying()
        return (
            "llama-server computed a prompt again that its slot held: this model's states can be "
            f"cut {cut.value}. Prompts that part elsewhere are computed whole"
        )

    def _learn_stop(self, is_kept: bool) -> str:
        self._missed = 0 if is_kept else self._missed + 1
        if self._missed < MOST_MISSED:
            return ""
        self._most_stops = 0
        for slot in self._slots:
            slot.checkpoints = tuple(one for one in slot.checkpoints if one not in slot.stops)
            slot.stops = ()
            self.contexts.moved(slot.number)
        return (
            "llama-server keeps no states at message_delimiters: with a newer one, prompts that "
            "part inside a message compute less"
        )

    def _other_cut(self, seat: Seat, cached: int) -> StateCut | None:
        """Where states can be cut, if not where the book believed."""
        if seat.found < LEAST_COPY or cached >= seat.found // 2:
            return None
        if seat.restore is not None and self._files.cut.fills_first:
            return StateCut.WINDOWS
        if self._files.cut is not StateCut.KEPT and self._files.cut.copies:
            return StateCut.KEPT
        return None

    def stop_copying(self) -> None:
        """Write no more files, and read none."""
        self._files.close()

    def done(self, saved: SavedState, *, lost: bool = False) -> None:
        """A request that wrote or read a file has ended. A `lost` file does not hold its state."""
        saved.users -= 1
        if lost:
            self._files.remove(saved)

    def swaps(self) -> list[tuple[int, SavedState]]:
        """The slots to write to files because the server wants contexts swapped out."""
        if not self.copies:
            return []
        idle = (self._slots[one] for one in self.contexts.swapped(LEAST_COPY))
        files = ((slot, self._save(slot, slot.tokens)) for slot in idle if slot.user is None)
        return [(slot.number, file) for slot, file in files if file is not None]

    def _sit(self, call: SlotCall, choice: _Choice, others: Sequence[SlotCall]) -> Seat:
        """Give the slot of `choice` to `call`. It is written first if the `others` can use it."""
        slot, restore = choice.slot, choice.restore
        self._clock += 1
        if restore is not None:
            restore.used = self._clock
            restore.users += 1
        shared = slot.is_border or (restore is None and self._is_shared(slot, others))
        shared = shared and self.copies
        save = self._save(slot, slot.tokens) if choice.saves or shared else None
        borders = [self._save(slot, one) for one in self._borders(slot)] if choice.saves else []
        seat = Seat(
            call,
            slot.number,
            choice.found,
            save,
            tuple(one for one in borders if one is not None),
            restore,
            fresh=restore is None and (slot.salt != call.salt or self._may_swap(slot, call)),
            at_stop=restore is None and choice.found in slot.stops,
        )
        slot.user, slot.used = call, self._clock
        kept = () if restore is not None else slot.checkpoints
        kept = tuple(one for one in kept if one <= choice.found)
        slot.stops = tuple(one for one in slot.stops if one in kept)
        call.stops = self._stops(call, choice.found)
        if restore is not None or not choice.found:
            slot.filed = choice.found
        self._set(slot, call.tokens[: choice.found], call.salt, kept)
        slot.is_border = False
        return seat

    def _may_swap(self, slot: LlamaSlot, call: SlotCall) -> bool:
        """Whether llama-server may take another tenant's tokens from its cache in memory for this
        call. It looks there if less than half of the slot stays."""
        if self._files.cut.copies or not self._has_tenants:
            return False
        return 2 * common(slot.tokens, call.tokens) < len(slot.tokens)

    def _choose(self, call: SlotCall, idle: Sequence[LlamaSlot]) -> _Choice:
        """The idle slot in which the call computes least, and others lose least."""
        saved, there = self._files.longest(call.tokens, call.salt)
        found: list[_Choice] = []
        for slot in idle:
            own = slot.holds(call.tokens, call.salt)
            found.append(self._choice(call, slot, own, None))
            if saved is not None and there > own:
                found.append(self._choice(call, slot, there, saved))
        return min(found, key=lambda one: (one.cost, one.used, one.slot.number))

    def _choice(
        self, call: SlotCall, slot: LlamaSlot, found: int, restore: SavedState | None
    ) -> _Choice:
        cost = float(len(call.tokens) - found)
        if restore is not None:
            cost += self.pace.copy_share * len(restore.tokens)
        loss = self.contexts.loss(slot.number, found if restore is None else 0)
        copied = self.pace.copy_share * len(slot.tokens)
        saves = self.copies and len(slot.tokens) >= LEAST_COPY and copied < loss
        cost += copied if saves else loss
        return _Choice(cost, slot.used, slot, found, saves, restore)

    def _shared(self, call: SlotCall, others: Sequence[SlotCall]) -> int:
        """How many first tokens of a prompt the `others`, which wait, have too.

        A state that is kept at few places is of no use to a prompt that parts from its tokens
        between them. What has parted there is likely to part there again, so such states count too.
        """
        known = [one.tokens for one in others]
        if self._files.cut.fills_first:
            slots = [slot for slot in self._slots if slot.salt == call.salt]
            known += (slot.tokens for slot in slots)
            known += (slot.user.tokens for slot in slots if slot.user is not None)
            known += (one.tokens for one in self._files.of(call.salt))
        shared = max((common(call.tokens, tokens) for tokens in known), default=0)
        return min(shared, len(call.tokens) - (0 if call.fills else 1))

    def _border_of(self, call: SlotCall, best: int) -> int:
        """The border of a prompt of which nothing is held, where a state must be kept now or never.
        0 if there is none: a conversation that goes on has its states."""
        border = max(call.borders[:1], default=0)
        is_new = self._files.cut.fills_first and best < LEAST_COPY <= border
        return border if is_new else 0

    def _lost(self, call: SlotCall, found: int) -> int:
        """How many tokens behind the first `found` of a prompt an idle slot or a file holds, whose
        state cannot be cut there."""
        if self._files.cut is StateCut.ANYWHERE:
            return 0
        known = [one.tokens for one in self._slots if one.user is None and one.salt == call.salt]
        known += (one.tokens for one in self._files.of(call.salt))
        shared = max((common(call.tokens, tokens) for tokens in known), default=0)
        return max(0, min(shared, len(call.tokens) - 1) - found)

    def _is_shared(self, slot: LlamaSlot, others: Sequence[SlotCall]) -> bool:
        """Whether a file of this slot would help a call of `others` more than what there is."""
        return any(
            slot.salt == one.salt
            and self._files.usable(slot.tokens, one.tokens)
            >= max(LEAST_COPY, self._best(one, without=slot) + LEAST_COPY)
            for one in others
        )

    def _best(self, call: SlotCall, without: LlamaSlot | None = None) -> int:
        """The longest beginning of a prompt that an idle slot or a file holds."""
        slots = (one for one in self._slots if one.user is None and one is not without)
        here = max((one.holds(call.tokens, call.salt) for one in slots), default=0)
        return max(here, self._files.longest(call.tokens, call.salt)[1])

    def _is_coming(self, call: SlotCall, best: int) -> bool:
        """Whether a longer beginning of the prompt will soon be in a slot that ends there.

        A running fill is waited for, and an answer whose rest takes no longer than to compute the
        beginning again. Behind an answer, only attention can be cut at that beginning.
        """
        if not self.copies:
            return False
        users = (slot.user for slot in self._slots if slot.user is not None)
        for user in users:
            if user.salt != call.salt or not (user.fills or self._files.cut is StateCut.ANYWHERE):
                continue
            gained = common(user.tokens, call.tokens) - best
            if gained >= max(LEAST_COPY, self.pace.ratio * user.left):
                return True
        return False

    def _save(self, slot: LlamaSlot, tokens: tuple[int, ...]) -> SavedState | None:
        """A file for these first tokens of a slot, unless there is one or no room."""
        if any(one.tokens == tokens for one in self._files.of(slot.salt or "")):
            return None
        self._clock += 1
        saved = self._files.add(tokens, slot.salt or "", self._clock, self.contexts.kept())
        if saved is not None:
            saved.users += 1
        return saved

    def _borders(self, slot: LlamaSlot) -> list[tuple[int, ...]]:
        """The beginnings of a slot's tokens that other prompts may go on with, the longest first.

        One ends at the last checkpoint, before the last prompt's end, with one token more: a
        request computes at least one. The next turn of a conversation seldom begins with all that
        the slot holds: a template leaves out thoughts, and the answer's text may give other tokens.
        Another ends at the last stop. There is none if the state can be cut anywhere.
        """
        if not slot.cut.fills_first or not slot.checkpoints:
            return []
        ends = [slot.checkpoints[-1] + 1]
        stop = max(slot.stops, default=0) + 1
        if stop < ends[0] and stop <= BORDER_SHARE * self._files.most:
            ends.append(stop)
        return [slot.tokens[:end] for end in ends if LEAST_COPY <= end < len(slot.tokens)]

    def _stops(self, call: SlotCall, found: int) -> tuple[int, ...]:
        """Where a call keeps states behind the first `found` tokens: a token before each border,
        because a file of the slot then ends there."""
        ends = (border - 1 for border in call.borders if border > found)
        return chosen(ends, (found,), least=LEAST_COPY, most=self._most_stops)

    def _set(
        self,
        slot: LlamaSlot,
        tokens: tuple[int, ...],
        salt: str | None,
        checkpoints: tuple[int, ...],
    ) -> None:
        slot.tokens, slot.salt, slot.checkpoints = tokens, salt, checkpoints
        self.contexts.moved(slot.number)


def most_stops(state: int, slots: int) -> int:
    """The stops of a call, if a state has so many bytes. llama-server itself keeps one."""
    return max(1, min(MOST_STOPS, STOP_BYTES // max(1, state * slots)))


def _part(call: SlotCall, size: int, *, at_border: bool = False) -> SlotCall:
    """The call that fills the first `size` tokens of a prompt."""
    borders = tuple(one for one in call.borders if one < size)
    part = SlotCall("", call.tokens[:size], call.salt, fills=True, at_border=at_border)
    part.borders = borders
    return part
