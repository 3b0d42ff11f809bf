"""The contexts of calls, and what slots and files hold of each. It is pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weftline_engine.api import Op, Residency, Retention
from weftline_engine.remote.common_tokens import common
from weftline_engine.remote.llamacpp.files import SavedFiles
from weftline_engine.remote.llamacpp.state_cut import StateCut
from weftline_engine.remote.return_count import ReturnCount, return_counts

# A context that may be evicted counts at least as this share of one that the server keeps. A freed
# one counts as the share of freed contexts that return: all of them, where the clients of
# conversations name no session. Agents, whose prompts have tools, are counted by themselves.
LIVE_SHARE = 0.3
# The shares of others and of agents before anything is known.
FREED_SHARES = (0.25, 0.75)
# Both shares are worth so many observations: a map-reduce of 20 calls does not end copies.
FREED_PRIOR = 4
# Freed contexts that are remembered for each slot. The oldest are reported as dropped.
FREED_PER_SLOT = 8


@dataclass(eq=False, slots=True)
class HeldTokens:
    """The tokens that a slot holds, and the tenant whose they are.

    `salt` is None where somebody else may have used the slot. The state is kept at `checkpoints`,
    numbers of tokens. The first `filed` of the tokens were read from a file.
    """

    cut: StateCut = StateCut.ANYWHERE
    tokens: tuple[int, ...] = ()
    salt: str | None = None
    checkpoints: tuple[int, ...] = ()
    filed: int = 0

    def holds(self, tokens: Sequence[int], salt: str, *, grows: bool = False) -> int:
        """How many tokens of a prompt need not be computed. A prompt that `grows` will have more
        than these tokens."""
        if self.salt != salt:
            return 0
        shared = common(self.tokens, tokens)
        cut = self.cut.of_files if shared < self.filed else self.cut
        return cut.usable(shared, len(self.tokens), len(tokens) + grows, self.checkpoints)


@dataclass(eq=False, slots=True)
class SlotContext:
    """A context's tokens, of which the first `prompt` were not generated, and how many of them each
    slot holds.

    `op` and `attempt` are those that make it. `told` is what the server knows: None while its op
    runs. A freed context has `returned` if a later prompt begins with its prompt, as the next turn
    of a conversation does whose client names no session. The answer may be left out or changed.
    """

    op: str
    attempt: int
    tokens: tuple[int, ...]
    prompt: int
    salt: str
    held: list[int]
    count: ReturnCount
    retention: Retention = Retention.EVICTABLE
    freed: bool = False
    returned: bool = False
    ended: bool = False
    told: tuple[Residency, int] | None = None

    @property
    def is_kept(self) -> bool:
        """Whether the server wants it to stay, in a slot or in a file."""
        return not self.freed and self.retention in (Retention.KEEP, Retention.SWAP)


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of a context, and the op and attempt that made it."""

    context: str
    op: str
    attempt: int
    residency: Residency
    tokens: int


class SlotContexts:
    """The contexts by id. They share the slots and the files with `SlotBook`."""

    def __init__(self, slots: Sequence[HeldTokens], files: SavedFiles) -> None:
        self._slots = slots
        self._files = files
        self._contexts: dict[str, SlotContext] = {}
        self._counts = return_counts()

    def begin(self, op: Op, tokens: tuple[int, ...]) -> None:
        """Add the context that an op will make of these tokens."""
        held = [slot.holds(tokens, op.salt, grows=True) for slot in self._slots]
        self._note_return(tokens, op.salt)
        self._contexts[op.context] = SlotContext(
            op.id,
            op.attempt,
            tokens,
            len(tokens),
            op.salt,
            held,
            self._counts[op.guesses.returns],
        )

    def grow(self, context: str, tokens: tuple[int, ...], *, ended: bool) -> None:
        """Note the tokens of a context now, perhaps because its op has ended."""
        if found := self._contexts.get(context):
            found.tokens, found.ended = tokens, ended
            found.prompt = found.prompt if ended else len(tokens)
            found.held = [slot.holds(tokens, found.salt, grows=True) for slot in self._slots]

    def fail(self, context: str) -> None:
        """The op of a context has failed: there is no such context."""
        self._contexts.pop(context, None)

    def tokens_of(self, context: str) -> tuple[int, ...] | None:
        """The tokens of a context that exists, or None."""
        found = self._contexts.get(context)
        return None if found is None or found.freed else found.tokens

    def retain(self, context: str, retention: Retention) -> None:
        """Note what the server wants to happen to a context."""
        if found := self._contexts.get(context):
            found.retention = retention

    def free(self, context: str) -> None:
        """Nobody will continue a context. What is left of it may still be found."""
        if found := self._contexts.get(context):
            found.freed = True

    def reports(self) -> Iterator[Left]:
        """The contexts of which another part is left than the server knows. Forgets those that are
        freed and gone, and the oldest of too many freed ones."""
        freed = [name for name, one in self._contexts.items() if one.freed]
        surplus = set(freed[: max(0, len(freed) - FREED_PER_SLOT * len(self._slots))])
        for name, one in list(self._contexts.items()):
            if not one.ended:
                continue
            resident, filed = max(one.held), self._filed(one)
            left = (Residency.DROPPED, 0)
            if name not in surplus and max(resident, filed) > 0:
                is_here = resident >= filed
                left = (Residency.RESIDENT, resident) if is_here else (Residency.HOST, filed)
            if left != one.told:
                one.told = left
                yield Left(name, one.op, one.attempt, *left)
            if one.freed and not left[1]:
                one.count.gone += not one.returned
                del self._contexts[name]

    def moved(self, number: int) -> None:
        """A slot holds other tokens."""
        for one in self._contexts.values():
            one.held[number] = self._slots[number].holds(one.tokens, one.salt, grows=True)

    def loss(self, number: int, left: int) -> float:
        """What contexts lose if only the first `left` tokens of a slot stay, in kept tokens."""
        most = 0.0
        for one in self._contexts.values():
            here = one.held[number]
            if here <= left or one.retention is Retention.DROP:
                continue
            others = (held for other, held in enumerate(one.held) if other != number)
            elsewhere = max(left, self._filed(one), *others, 0)
            share = one.count.share
            if not one.freed:  # it is no less then, because its application has not ended
                share = 1.0 if one.is_kept else max(share, LIVE_SHARE)
            most = max(most, share * (here - elsewhere))
        return most

    def kept(self) -> set[tuple[int, ...]]:
        """What files hold of contexts that the server keeps."""
        return {one.tokens[: self._filed(one)] for one in self._contexts.values() if one.is_kept}

    def swapped(self, least: int) -> Iterator[int]:
        """The slots to write to files because the server wants contexts swapped out.

        A slot is named once, for at least `least` tokens that no file holds.
        """
        for one in self._contexts.values():
            if one.retention is Retention.SWAP and not one.freed and one.ended:
                number = max(range(len(one.held)), key=one.held.__getitem__)
                one.retention = Retention.KEEP
                if one.held[number] >= self._filed(one) + least:
                    yield number

    def _note_return(self, tokens: tuple[int, ...], salt: str) -> None:
        """A prompt may begin with that of a freed context."""
        for one in self._contexts.values():
            if not one.freed or one.returned or one.salt != salt or one.prompt >= len(tokens):
                continue
            if tokens[: one.prompt] == one.tokens[: one.prompt]:
                one.returned = True
                one.count.returned += 1

    def _filed(self, context: SlotContext) -> int:
        return self._files.longest(context.tokens, context.salt, grows=True)[1]
