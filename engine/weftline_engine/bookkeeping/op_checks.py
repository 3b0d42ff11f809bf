"""The checks that decide whether an op is possible, before it is queued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weftline.contract.sampling import PARAMETERS, RANGES
from weftline_engine.api import Kind, Op, SamplingParams, too_long
from weftline_engine.bookkeeping.kv.contexts import Context
from weftline_engine.bookkeeping.schedule.sequence import Sequence as Queued

# What a model's publisher says of a parameter is in no range.
_RANGES = {name: one for name, one in RANGES.items() if not PARAMETERS[name].of_model}


class OpRefused(Exception):
    """An op cannot be run. `error` is the name of its error type in weftline.errors. `param` is the
    field of its sampling that is at fault, if one is."""

    def __init__(self, error: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.error = error
        self.param = param


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """The limits of an engine. It runs ops of `kinds`, with token ids below `vocabulary`, in
    sequences of at most `context` tokens. The ids of `eos` end an output."""

    context: int
    vocabulary: int
    eos: tuple[int, ...] = ()
    kinds: tuple[str, ...] = (Kind.FILL, Kind.GENERATE)


def check(op: Op, contexts: Mapping[str, Context], limits: EngineLimits) -> None:
    """Raise Refused unless the op can be run with these contexts."""
    if op.kind not in limits.kinds:
        raise OpRefused(
            "InvalidRequest",
            f"this engine runs no ops of kind {op.kind}, only {', '.join(limits.kinds)}",
        )
    if op.text is not None or (op.tokens is None and not op.open and op.parent is None):
        raise OpRefused("InvalidRequest", "this engine takes token ids, and the op has none")
    check_tokens(op.tokens or (), limits)
    if op.context in contexts:
        raise OpRefused("InvalidRequest", f"context {op.context} exists already")
    if op.parent is not None and op.parent not in contexts:
        raise OpRefused("InvalidRequest", f"context {op.parent} does not exist (any more)")
    if op.parent is not None and contexts[op.parent].salt != op.salt:
        raise OpRefused("InvalidRequest", f"context {op.parent} belongs to another salt")
    if op.kind == Kind.GENERATE and (op.sampling is None or op.sampling.max_tokens < 1):
        raise OpRefused("InvalidRequest", "a generate needs a max_tokens of 1 or more")
    if op.sampling is not None:
        _check_sampling(op.sampling)
        for token, _ in op.sampling.logit_bias:
            if not 0 <= token < limits.vocabulary:
                raise OpRefused(
                    "InvalidRequest",
                    f"logit_bias names token {token}: the model's ids end at "
                    f"{limits.vocabulary - 1}",
                    param="logit_bias",
                )


def check_tokens(tokens: Sequence[int], limits: EngineLimits) -> None:
    """Raise Refused for ids that the model's embedding does not have."""
    if tokens and not 0 <= min(tokens) <= max(tokens) < limits.vocabulary:
        raise OpRefused("InvalidRequest", f"token ids must lie in 0 to {limits.vocabulary - 1}")


def check_prompt(sequence: Queued, limits: EngineLimits) -> None:
    """Raise Refused for a prompt that is empty, or leaves no room for an output token."""
    prompt, room = sequence.prompt, limits.context - sequence.generates
    if prompt > room:
        raise OpRefused("ContextTooLong", too_long(prompt, limits.context))
    if prompt == 0 and not sequence.open and sequence.generates:
        raise OpRefused("InvalidRequest", "the prompt is empty")


def _check_sampling(params: SamplingParams) -> None:
    for name, (least, most) in _RANGES.items():
        value = getattr(params, name)
        if value is not None and not least <= value <= most:  # NaN is in no range
            raise OpRefused(
                "InvalidRequest", f"{name} is {value}, and must lie in {least} to {most}"
            )
