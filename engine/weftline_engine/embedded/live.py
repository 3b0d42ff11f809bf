"""An op in flight: its sequence, the context it makes, and its text so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from weftline_engine.api import Op, SamplingParams
from weftline_engine.bookkeeping.schedule.sequence import Context, Sequence
from weftline_engine.bookkeeping.text import StopScanner, TokenStream
from weftline_engine.embedded.sample.constraint import Matcher


@dataclass(eq=False, slots=True)
class Live:
    """`slot` is its row in the sampler, -1 for none; `offset` where its payload ends, for feed."""

    sequence: Sequence
    context: Context
    stream: TokenStream | None = None
    scanner: StopScanner = field(default_factory=lambda: StopScanner(()))
    matcher: Matcher | None = None
    slot: int = -1
    started: float = 0.0
    filled: float = 0.0
    offset: int = 0

    @property
    def op(self) -> Op:
        return self.sequence.op

    @property
    def params(self) -> SamplingParams:
        assert self.op.sampling is not None, "a generate is checked to have sampling"
        return self.op.sampling

    @property
    def number(self) -> int:
        """A number from the op's id, the same in every run: for a seed where none is given."""
        return int.from_bytes(self.op.id.encode()[-8:], "little")

    def text(self, token: int, *, at_end: bool, full: bool) -> tuple[str, bool]:
        """The text that one more token makes ready to be sent, and whether a stop string ended it.

        The token has been appended; `at_end` says that it stands for the end and is no text, `full`
        that it is the last in any case.
        """
        assert self.stream is not None
        text = "" if at_end else self.stream.push([token])
        if self.sequence.output >= self.params.min_tokens:
            text = self.scanner.push(text)  # until then, stop strings are text like any other
        if (at_end or full) and not self.scanner.stopped:
            text += self.scanner.push(self.stream.finish())
            if not self.scanner.stopped:
                text += self.scanner.finish()
        return text, self.scanner.stopped
