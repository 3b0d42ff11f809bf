"""Sampling: how one output is generated. It is checked where it is made."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
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
        says="The form of the output: a json_schema, regex, choice, grammar or structural_tag.",
        example={"choice": ["yes", "no"]},
    )

    def __post_init__(self) -> None:
        _check_numbers(self)
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
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequest(f"stop takes at most {MAX_STOP_STRINGS} strings", param="stop")
        if any(not 0 < len(s) <= MAX_STOP_CHARS for s in self.stop):
            raise InvalidRequest(
                f"each stop string must have 1 to {MAX_STOP_CHARS} characters", param="stop"
            )
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


def _check_numbers(sampling: Sampling) -> None:
    """Raise InvalidRequest for the first field that must be a number and is none."""
    for name in (*RANGES, "seed"):
        value = getattr(sampling, name)
        if not isinstance(value, int | float | None):
            got = str(value)[:40]
            raise InvalidRequest(f"{name} must be a number, got {got!r}", param=name)


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
        if not _TOKEN.fullmatch(_shown(token)):
            raise InvalidRequest(
                f"{_shown(token)} in stop_token_ids is not the id of a token",
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
        if not -MOST_BIAS <= value <= MOST_BIAS:
            raise InvalidRequest(
                f"logit_bias of token {token} must be in -100 to 100, got {_shown(value)}",
                param="logit_bias",
            )
