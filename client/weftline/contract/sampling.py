"""Sampling: how one output is generated. It is checked where it is made."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from weftline.contract.bodies import StrictBody
from weftline.contract.constraints import check_constraint
from weftline.contract.errors import InvalidRequest
from weftline.contract.parameters import (
    MAX_TOKENS,
    CommonSampling,
    Parameter,
    parameter,
    rows_of,
)

MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256
MAX_STOP_TOKENS = 64
MAX_LOGPROBS = 20  # alternatives for each token, as in OpenAI's API
MAX_BIASES = 1024  # entries of a logit_bias
MOST_BIAS = 100.0  # as in OpenAI's API
_TOKEN = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling(CommonSampling, StrictBody):
    """How one output is generated. None leaves the choice to the model's defaults.

    The numbers of tokens are of the output. A constraint goes before `logit_bias`, and
    `stop_token_ids` end an output also with `ignore_eos`.

    Raises InvalidRequest for a value out of range.
    """

    max_tokens: int | None = parameter(
        says="The most tokens of the output.", example=64, least=1, most=MAX_TOKENS
    )
    stop: tuple[str, ...] = parameter(
        (), says="Texts that end the output. They are not part of it.", example=["\n"]
    )
    logprobs: int | None = parameter(
        says="Log probabilities of a token, and of this many alternatives.",
        example=0,
        least=0,
        most=MAX_LOGPROBS,
    )
    constraint: dict[str, Any] | None = parameter(
        hashed=False,
        says="The form of the output: a json_schema, regex, choice, grammar or structural_tag.",
        example={"choice": ["yes", "no"]},
    )

    def __post_init__(self) -> None:
        _check_types(self)
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if value is None:
                continue
            # `isfinite` makes a float of an integer, which fails for one of hundreds of digits.
            if isinstance(value, float) and not math.isfinite(value):
                raise InvalidRequest(f"{name} must be a finite number", param=name)
            if value < least:
                got = _shown(value)
                raise InvalidRequest(f"{name} must be at least {least:g}, got {got}", param=name)
            if value > most:
                got = _shown(value)
                raise InvalidRequest(f"{name} must be at most {most:g}, got {got}", param=name)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens must be at most {self.max_tokens}, got {self.min_tokens}",
                param="min_tokens",
            )
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InvalidRequest(f"top_p must be in (0, 1], got {self.top_p}", param="top_p")
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise InvalidRequest("seed must fit in 64 bits", param="seed")
        _check_stop(self.stop)
        _check_stop_tokens(self.stop_token_ids)
        _check_biases(self.logit_bias or {})
        if self.constraint is not None:
            check_constraint(self.constraint)


PARAMETERS: Mapping[str, Parameter] = MappingProxyType(dict(rows_of(Sampling)))
# The least and the greatest value of each number.
RANGES = {
    name: (one.least, one.most)
    for name, one in PARAMETERS.items()
    if one.least is not None and one.most is not None
}


_WHOLE = {one.name for one in fields(Sampling) if str(one.type).startswith("int")}


def stop_strings(given: Any) -> tuple[str, ...]:
    """The field `stop` of OpenAI's API as that of Sampling: one text, several, or None."""
    if given is None:
        return ()
    stop = (given,) if isinstance(given, str) else given
    _check_stop(stop)
    return tuple(stop)


def _check_types(sampling: Sampling) -> None:
    """Raise InvalidRequest for the first field that is of a wrong type.

    The server reads requests by these types. Here a program may give anything.
    """
    for name in (*RANGES, "seed"):
        value = getattr(sampling, name)
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise _wrong(name, "a number", value)
        if name in _WHOLE and isinstance(value, float) and value % 1 != 0:
            raise _wrong(name, "a whole number", value)
    if not isinstance(sampling.ignore_eos, bool):
        raise _wrong("ignore_eos", "True or False", sampling.ignore_eos)
    if not isinstance(sampling.stop_token_ids, list | tuple):
        raise _wrong("stop_token_ids", "a list of token ids", sampling.stop_token_ids)
    if not isinstance(sampling.logit_bias, dict | None):
        raise _wrong("logit_bias", "a dict of token ids and numbers", sampling.logit_bias)


def _wrong(name: str, kind: str, got: object) -> InvalidRequest:
    return InvalidRequest(f"{name} must be {kind}, got {str(got)[:40]!r}", param=name)


def _check_stop(stop: object) -> None:
    if not isinstance(stop, list | tuple) or not all(isinstance(text, str) for text in stop):
        raise _wrong("stop", "a list of texts", stop)
    if len(stop) > MAX_STOP_STRINGS:
        raise InvalidRequest(f"stop takes at most {MAX_STOP_STRINGS} strings", param="stop")
    if any(not 0 < len(text) <= MAX_STOP_CHARS for text in stop):
        raise InvalidRequest(
            f"each stop string must have 1 to {MAX_STOP_CHARS} characters", param="stop"
        )


def _shown(value: float) -> str:
    """A number for an error message, cut where it has many digits."""
    text = str(value) if isinstance(value, float) or abs(value) < 10**40 else ""
    return text or "a number of more than 40 digits"


def _check_stop_tokens(tokens: tuple[int, ...]) -> None:
    """Raise InvalidRequest for too many tokens, or for a number that is no id of a token."""
    if len(tokens) > MAX_STOP_TOKENS:
        raise InvalidRequest(
            f"stop_token_ids takes at most {MAX_STOP_TOKENS} tokens, got {len(tokens):,}",
            param="stop_token_ids",
        )
    for token in tokens:
        if not isinstance(token, int) or not _TOKEN.fullmatch(_shown(token)):
            shown = _shown(token) if isinstance(token, int) else repr(token)[:40]
            raise InvalidRequest(
                f"{shown} in stop_token_ids is not the id of a token",
                param="stop_token_ids",
            )


def _check_biases(biases: Mapping[str, float]) -> None:
    """Raise InvalidRequest for too many entries, or for the first that is wrong."""
    if len(biases) > MAX_BIASES:
        raise InvalidRequest(
            f"logit_bias has at most {MAX_BIASES:,} entries, got {len(biases):,}",
            param="logit_bias",
        )
    for key, value in biases.items():
        token = str(key)  # users of the SDK may give integers, which become texts in JSON
        if not _TOKEN.fullmatch(token):
            raise InvalidRequest(
                f"{token[:40]!r} in logit_bias is not the id of a token", param="logit_bias"
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong("logit_bias", "a dict of token ids and numbers", {key: value})
        if not -MOST_BIAS <= value <= MOST_BIAS:
            raise InvalidRequest(
                f"logit_bias of token {token} must be in -100 to 100, got {_shown(value)}",
                param="logit_bias",
            )
