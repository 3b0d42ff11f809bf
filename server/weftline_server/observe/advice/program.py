"""A program's prompts: how often they part, where, and what that has cost so far."""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from weftline_server.observe.advice.difference import Cause, Difference
from weftline_server.observe.advice.prompt import Place, PromptTexts

MOST_FINDINGS = 32  # of a program; the one that was found longest ago leaves
MOST_RECORDED = 64  # calls of a program whose lengths are kept
EXTRACT_CHARS = 60  # of each text around its first difference
HEAD_CHARS = 20  # of these stand before the difference
# At twice as many calls all counts are halved, so that a program that was mended is soon without
# advice.
MOST_COUNTED = 512
# A difference is told from this many times on, and from this share of the calls on. A conversation
# whose history is summarised once in 30 turns is sound.
LEAST_TIMES, LEAST_SHARE = 2, 0.05

Subject = tuple[Cause, tuple[str, ...], str | None]
"""What is told apart: the cause, the names or roles of the segments that differ, and the tool."""


@dataclass(frozen=True, slots=True)
class Extract:
    """The two texts around their first difference."""

    before: str
    after: str

    @staticmethod
    def of(before: str, after: str, offset: int) -> Extract:
        """The texts around character `offset`."""
        start = max(0, offset - HEAD_CHARS)
        stop = start + EXTRACT_CHARS
        return Extract(before[start:stop], after[start:stop])


@dataclass(slots=True)
class Finding:
    """One way in which the prompts of a program part.

    `difference` is the last one, and `places` are those of its segments. `target` is that of the
    last segment with equal text behind them. `follower` is the place behind the target, None at the
    end of the prompt. `roams` says that the segments were others before.
    """

    difference: Difference
    places: tuple[Place, ...]
    target: Place | None
    follower: Place | None
    roams: bool
    extract: Extract | None
    times: int = 0
    lost: int = 0  # tokens, in all these times


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """The lengths of one call: the segments by the hash of their text, with their tokens.

    `tools` has a segment for each tool. `follows` is the number of the call whose
    prompt this one was compared with. `at` is when the call was queued, in seconds of the server's
    clock. `output` are the tokens that it generated, in `decode_s` seconds. Of the tokens of its
    `prompt` so many were `computed`, in `fill_s` seconds.
    """

    number: int
    follows: int | None
    at: float
    segments: tuple[tuple[int, int], ...]
    tools: tuple[tuple[int, int], ...]
    output: int
    prompt: int = 0
    computed: int = 0
    fill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(slots=True, eq=False)
class Program:
    """Calls of one name whose prompts are alike. In the name `#` stands for any number.

    `begins` is the beginning of its template, with `{name}` where an input stands, or that of a
    conversation's first message. `is_template` says which of the two it is.
    """

    name: str
    model: str
    begins: str
    is_template: bool
    engine: str = ""
    calls: int = 0  # that were compared with an earlier one
    prompt_tokens: int = 0
    cached_tokens: int = 0
    states_lost: int = 0  # calls
    state_tokens: int = 0  # that these calls computed again
    findings: OrderedDict[Subject, Finding] = field(default_factory=OrderedDict)
    number: int = 0  # of its last call
    recorded: deque[RecordedCall] = field(default_factory=lambda: deque(maxlen=MOST_RECORDED))

    def count(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Count a call that was compared, with the tokens of its prompt."""
        if self.calls >= 2 * MOST_COUNTED:
            self._halve()
        self.calls += 1
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens

    def lose_state(self, tokens: int) -> None:
        """Count a call that computed tokens again which its engine held."""
        self.states_lost += 1
        self.state_tokens += tokens

    def add(
        self,
        found: Difference,
        places: Sequence[Place],
        texts: tuple[PromptTexts, PromptTexts],
        tokens: int,
    ) -> None:
        """Count a difference of two prompts, the second of which has these places."""
        at = tuple(places[index] for index in found.at)
        subject = (found.cause, tuple(one.name or one.role or "" for one in at), found.tool)
        kept = self.findings.pop(subject, None)
        target = places[found.last] if found.at and found.last > found.at[-1] else None
        extract = None
        if found.at:
            before, after = (one.texts[found.start] for one in texts)
            extract = Extract.of(before, after, found.offset)
        new = Finding(
            found,
            at,
            target,
            places[found.last + 1] if found.last + 1 < len(places) else None,
            kept is not None and (kept.roams or kept.places != at),
            extract,
            times=1 + (0 if kept is None else kept.times),
            lost=tokens + (0 if kept is None else kept.lost),
        )
        self.findings[subject] = new
        if len(self.findings) > MOST_FINDINGS:
            self.findings.popitem(last=False)

    def told(self) -> list[tuple[Subject, Finding]]:
        """The findings that are worth telling, those that cost most first."""
        least = max(LEAST_TIMES, LEAST_SHARE * self.calls)
        found = [item for item in self.findings.items() if item[1].times >= least]
        return sorted(found, key=lambda item: -item[1].lost)

    def id_of(self, subject: Subject) -> str:
        """The id of a finding: 12 hex digits, the same in every run of the server."""
        told = repr((self.name, self.model, self.begins, subject))
        return hashlib.blake2b(told.encode(errors="replace"), digest_size=6).hexdigest()

    def _halve(self) -> None:
        self.calls //= 2
        self.prompt_tokens //= 2
        self.cached_tokens //= 2
        self.states_lost //= 2
        self.state_tokens //= 2
        for subject, found in list(self.findings.items()):
            found.times //= 2
            found.lost //= 2
            if not found.times:
                del self.findings[subject]
