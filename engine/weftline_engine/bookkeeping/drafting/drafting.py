"""Proposes drafts for the sequences that decode, and learns how often they are accepted.

The first candidates are the tokens that the op's constraint forces. After them come tokens that
followed the same last tokens elsewhere: in the prompt, in the output, in the op's references, or in
the last output under the same constraint. No draft changes an output, because a draft is accepted
only if it is the token that the step samples.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from weftline_engine.api import MOST_REFERENCES, Op, SamplingParams
from weftline_engine.bookkeeping.drafting.draft_counts import MOST_DRAFTS, StepCosts, counts
from weftline_engine.bookkeeping.drafting.lookup import MOST_MATCHED, Lookup
from weftline_engine.bookkeeping.drafting.rates import Guess, GuessRates, GuessSource, OutputRate

# Only this many last tokens of a reference are used, because an answer is at the end of its
# context.
MOST_OF_REFERENCE = 512
# The most constraints whose last output is kept. Each takes up to 20 kB.
_MOST_REMEMBERED = 64


class Grammar(Protocol):
    """The tokens that the constraints of ops force or allow next."""

    def forced(self, op: str) -> Sequence[int]:
        """The next tokens of the op that its constraint determines completely."""
        ...

    def allowed(self, op: str, tokens: Sequence[int]) -> int:
        """How many of these tokens, from the first on, the op's constraint allows in this order."""
        ...


@dataclass(eq=False, slots=True)
class Drafter:
    """The state of drafting for one op. `guesses` are the candidates of the current step. The first
    `drafted` of them are verified."""

    op: Op
    texts: Lookup
    rate: OutputRate = field(default_factory=OutputRate)
    guesses: tuple[Guess, ...] = ()
    drafted: int = 0
    place: int = 0  # tokens that the current step has generated
    proposed: int = 0  # tokens verified so far
    accepted: int = 0  # of these, tokens that are in the output

    @property
    def sampling(self) -> SamplingParams:
        assert self.op.sampling is not None, "only generates are drafted"
        return self.op.sampling

    @property
    def drafts(self) -> tuple[int, ...]:
        """The tokens to verify in this step."""
        return tuple(guess.token for guess in self.guesses[: self.drafted])

    def rest(self) -> None:
        """End the step: drop its guesses."""
        self.guesses, self.drafted, self.place = (), 0, 0


class Drafting:
    """The drafts of an engine whose steps cost `costs`.

    `tokens_of` returns the tokens of a context by its name and salt, or None if there is none.
    """

    def __init__(
        self,
        costs: StepCosts,
        grammar: Grammar,
        tokens_of: Callable[[str, str], Sequence[int] | None],
    ) -> None:
        self.rates = GuessRates()
        self._costs = costs
        self._grammar = grammar
        self._tokens_of = tokens_of
        self._remembered: OrderedDict[tuple[str, str], tuple[int, ...]] = OrderedDict()

    def start(self, op: Op, tokens: Sequence[int]) -> Drafter:
        """Begin to draft for an op, whose `tokens` are its prompt and its output so far."""
        references = [
            found[-MOST_OF_REFERENCE:]
            for name in op.guesses.references[:MOST_REFERENCES]
            if (found := self._tokens_of(name, op.salt)) is not None
        ]
        if (last := self._remembered.get(_form(op))) is not None:
            references.insert(0, last)
        return Drafter(op, Lookup(references, tokens))

    def choose(self, decoding: Iterable[tuple[Drafter, Sequence[int], int]]) -> None:
        """Set the drafts of a step in which all of these sequences decode. Each has its drafter,
        its tokens, and how many drafts it has room for. If drafts gain nothing, none are set."""
        items = list(decoding)
        lengths = [len(tokens) for _, tokens, _ in items]
        if not items or not self._costs.can_pay(lengths):
            return
        for drafter, tokens, room in items:
            drafter.texts.grow(tokens)
            drafter.guesses = self._guess(drafter, min(room, MOST_DRAFTS))
        chances = [[self.rates.of(guess, one.rate) for guess in one.guesses] for one, _, _ in items]
        for (drafter, _, _), count in zip(
            items, counts(lengths, chances, self._costs), strict=True
        ):
            drafter.drafted = count

    def compare(self, drafter: Drafter, token: int | None) -> None:
        """Compare a guess with the next token that the step has generated. Call it in order."""
        if drafter.place == 0:
            drafter.proposed += drafter.drafted
        if drafter.place < len(drafter.guesses):
            guess = drafter.guesses[drafter.place]
            true = guess.token == token
            self.rates.add(guess, true, drafter.rate)
            drafter.accepted += true and drafter.place < drafter.drafted
            if not true:
                drafter.guesses = ()  # the remaining guesses follow a wrong token
        drafter.place += 1

    def remember(self, op: Op, output: Sequence[int]) -> None:
        """Keep the output of an op that has ended: other ops under the same constraint may repeat
        the output."""
        if (form := _form(op))[1]:
            self._remembered.pop(form, None)
            self._remembered[form] = tuple(output[:MOST_OF_REFERENCE])
            if len(self._remembered) > _MOST_REMEMBERED:
                self._remembered.popitem(last=False)

    def _guess(self, drafter: Drafter, most: int) -> tuple[Guess, ...]:
        if most < 1:
            return ()
        op, bound = drafter.op.id, drafter.sampling.constraint is not None
        forced = tuple(self._grammar.forced(op))[:most] if bound else ()
        guesses = [Guess(token, GuessSource.GRAMMAR) for token in forced]
        if len(forced) < most:
            found, matched = drafter.texts.after(forced, most - len(forced))
            guesses += [
                Guess(token, GuessSource.LOOKUP, min(matched + place, MOST_MATCHED))
                for place, token in enumerate(found)
            ]
            if bound and found:
                allowed = self._grammar.allowed(op, [guess.token for guess in guesses])
                guesses = guesses[: max(allowed, len(forced))]
        return tuple(guesses)


def _form(op: Op) -> tuple[str, str]:
    """The key under which an output is kept: its salt and its constraint."""
    constraint = None if op.sampling is None else op.sampling.constraint
    return op.salt, constraint or ""
