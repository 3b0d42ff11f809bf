"""What makes an op impossible, decided before it is queued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weftline_engine.api import MOST_LOGPROBS, Kind, Op, SamplingParams
from weftline_engine.bookkeeping.schedule.sequence import Context


class Refused(Exception):
    """An op cannot be taken; `error` is the type of weftline.errors that says so."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(message)
        self.error = error


def check(op: Op, contexts: Mapping[str, Context], vocabulary: int) -> None:
    """Raise Refused unless the op can be taken with these contexts."""
    if op.text is not None or (op.tokens is None and not op.open and op.parent is None):
        raise Refused("InvalidRequest", "this engine takes token ids, and the op has none")
    check_tokens(op.tokens or (), vocabulary)
    if op.context in contexts:
        raise Refused("InvalidRequest", f"context {op.context} exists already")
    if op.parent is not None and op.parent not in contexts:
        raise Refused("InvalidRequest", f"context {op.parent} does not exist (any more)")
    if op.parent is not None and contexts[op.parent].salt != op.salt:
        raise Refused("InvalidRequest", f"context {op.parent} belongs to another salt")
    if op.kind is Kind.GENERATE and (op.sampling is None or op.sampling.max_tokens < 1):
        raise Refused("InvalidRequest", "a generate needs a max_tokens of 1 or more")
    if op.sampling is not None:
        _check_sampling(op.sampling)


def _check_sampling(params: SamplingParams) -> None:
    # name: (value, least, most); a value that is no number lies in no range.
    ranges = {
        "min_p": (params.min_p, 0, 1),
        "presence_penalty": (params.presence_penalty, -2, 2),
        "frequency_penalty": (params.frequency_penalty, -2, 2),
        "repetition_penalty": (params.repetition_penalty, 0.01, 100),
        "logprobs": (params.logprobs or 0, 0, MOST_LOGPROBS),
    }
    for name, (value, least, most) in ranges.items():
        if not least <= value <= most:
            raise Refused("InvalidRequest", f"{name} is {value}, and must lie in {least} to {most}")


def check_tokens(tokens: Sequence[int], vocabulary: int) -> None:
    """Raise Refused for ids that the model's embedding does not have."""
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
        raise Refused("InvalidRequest", f"token ids must lie in 0 to {vocabulary - 1}")
