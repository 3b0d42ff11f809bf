"""The output of one op: turns tokens into text that has whole characters and no stop string.

The bookkeeping has no tokenizer. The engine passes a `Detokenizer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypedDict

from weftline_engine.api import SamplingParams


class TokenStream(Protocol):
    """The text of one output, token by token."""

    def push(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete. Empty while bytes of a character are missing."""
        ...

    def finish(self) -> str:
        """The remaining text when no more tokens come."""
        ...


class Detokenizer(Protocol):
    """Starts the stream of an output. The last tokens of the prompt decide on a leading space."""

    def stream(self, prompt: Sequence[int]) -> TokenStream: ...


class Logprobs(TypedDict, total=False):
    """The fields of a Part with the log probabilities of its tokens."""

    logprobs: tuple[float, ...]
    top_tokens: tuple[int, ...]
    top_logprobs: tuple[float, ...]


class Unsent(Logprobs):
    """The fields of a Part."""

    offset: int
    tokens: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Sampled:
    """The next token of an op. `token` is None if its logits were not finite. Under a constraint,
    `error` says why the output cannot continue, and `ended` that it is complete. `redrawn`: a step
    that was launched since then computed another token in its place."""

    token: int | None
    logprobs: Logprobs
    constrained: bool = False
    error: str = ""
    ended: bool = False
    redrawn: bool = False


class StopScanner:
    """Passes text on until a stop string appears. Holds back a possible beginning of one.

    A stop string in the `block` with which the text begins (SamplingParams.block) is text.
    """

    def __init__(self, stops: Sequence[str], block: Sequence[str] = ()) -> None:
        self._stops = [stop for stop in stops if stop]
        self._opens, self._closes = block or ("", "")
        self._kept = ""
        self.stopped_by = ""  # the stop string that has appeared

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the text."""
        return bool(self.stopped_by)

    def push(self, text: str) -> str:
        """The text that may be sent now. After a stop string it is empty."""
        if self.stopped:
            return ""
        if not self._stops:
            return text
        text, self._kept = self._kept + text, ""
        if self._closes:
            thoughts, text = self._thoughts(text)
            return thoughts + self._scan(text)
        return self._scan(text)

    def _thoughts(self, text: str) -> tuple[str, str]:
        """The text of the block, and what is behind it. The rest is kept."""
        begun = text.lstrip()
        if not begun.startswith(self._opens):
            if self._opens.startswith(begun):
                self._kept = text
                return "", ""
            self._closes = ""  # it begins with no block
            return "", text
        before, closed, behind = text.partition(self._closes)
        if closed:
            self._closes = ""
            return before + closed, behind
        self._opens = ""
        keep = _overlap(text, self._closes)
        self._kept = text[len(text) - keep :]
        return text[: len(text) - keep], ""

    def _scan(self, text: str) -> str:
        if self._closes:
            return ""  # nothing of it is behind the block
        found = [(text.find(stop), stop) for stop in self._stops if stop in text]
        if found:
            at, self.stopped_by = min(found, key=lambda one: one[0])
            self._kept = ""
            return text[:at]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._kept = text[len(text) - keep :]
        return text[: len(text) - keep]

    def whole(self, text: str) -> str:
        """A whole output up to its stop string."""
        said = self.push(text)
        return said if self.stopped else said + self.finish()

    def finish(self) -> str:
        """The text that was held back, at the end of the output."""
        kept, self._kept = self._kept, ""
        return kept


class OpOutput:
    """Collects the tokens and the text of an op's output, in parts of `part_tokens`."""

    def __init__(self, params: SamplingParams, stream: TokenStream, part_tokens: int) -> None:
        self.count = 0  # tokens
        self._params = params
        self._stream = stream
        self._part_tokens = part_tokens
        self._scanner = StopScanner(params.stop, params.block)
        self._tokens: list[int] = []  # not sent yet, as are the other two
        self._texts: list[str] = []
        self._logprobs: list[Logprobs] = []
        self._whole: list[str] = []  # kept only for an output that may pause

    @property
    def stopped_by(self) -> str:
        """The stop string that has ended the text, "" if none has."""
        return self._scanner.stopped_by

    def push(self, token: int, logprobs: Logprobs, *, at_end: bool, last: bool) -> bool:
        """Add a token; returns whether a stop string has ended the text.

        `at_end` says that the token marks the end and has no text. `last` says that no other token
        follows.
        """
        self.count += 1
        text = "" if at_end else self._stream.push([token])
        if self.count >= self._params.min_tokens:
            text = self._scanner.push(text)  # before min_tokens, stop strings do not end the text
        if (at_end or last) and not self._scanner.stopped:
            text += self._scanner.push(self._stream.finish())
            if not self._scanner.stopped:
                text += self._scanner.finish()
        self._tokens.append(token)
        self._texts.append(text)
        if logprobs:
            self._logprobs.append(logprobs)
        if self._params.pause_on:
            self._whole.append(text)
        return self._scanner.stopped

    def unsent(self, *, ended: bool) -> Unsent | None:
        """The fields of the next part. None if it is not full, unless the output has `ended`."""
        if len(self._tokens) < (1 if ended else self._part_tokens):
            return None
        part = Unsent(
            offset=self.count - len(self._tokens),
            tokens=tuple(self._tokens),
            text="".join(self._texts),
        )
        for one in self._logprobs:
            part["logprobs"] = part.get("logprobs", ()) + one["logprobs"]
            part["top_tokens"] = part.get("top_tokens", ()) + one["top_tokens"]
            part["top_logprobs"] = part.get("top_logprobs", ()) + one["top_logprobs"]
        self._tokens, self._texts, self._logprobs = [], [], []
        return part

    def pause(self) -> str | None:
        """The first of `pause_on` that the text contains."""
        whole = "".join(self._whole)
        return next((one for one in self._params.pause_on if one and one in whole), None)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, but not all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
