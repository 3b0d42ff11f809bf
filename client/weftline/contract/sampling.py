"""Sampling: how one output is generated. It is checked where it is made."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weftline.contract.bodies import StrictBody
from weftline.contract.constraints import check_constraint
from weftline.contract.errors import InvalidRequest

MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256
MAX_STOP_TOKENS = 64
MAX_TOKENS = 1 << 20
MAX_LOGPROBS = 20  # alternatives for each token, as in OpenAI's API
MAX_BIASES = 1024  # entries of a logit_bias
MOST_BIAS = 100.0  # as in OpenAI's API
_TOKEN = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling(StrictBody):
    """How one output is generated. None leaves the choice to the model's defaults.

    - `max_tokens` and `min_tokens` count generated tokens.
    - `temperature` 0 always takes the likeliest token (greedy decoding).
    - `top_p` samples from the likeliest tokens whose probabilities add up to this share.
    - `top_k` samples from this many of the likeliest tokens.
    - `min_p` excludes tokens that are less likely than this share of the likeliest token.
    - `presence_penalty` and `frequency_penalty` lower the logits of tokens in the output.
    - `repetition_penalty` divides the logits of tokens in the prompt or output. 1 turns it off.
    - `seed` makes sampling repeatable. It must fit in 64 bits.
    - `stop` are texts at which generation ends. The output does not contain them.
    - `stop_token_ids` are tokens at which generation ends, also with `ignore_eos`. The output does
      not contain their text.
    - `ignore_eos` generates on after the model's end token.
    - `logprobs` asks for each token's log probability, and for this many alternatives to it.
    - `logit_bias` adds a number of -100 to 100 to the logits of tokens, by their ids. -100 bans a
      token, and 100 allows no others. A constraint goes before it.
    - `constraint` is the form of the output: `{"json_schema": ...}`, `{"regex": "..."}`,
      `{"choice": ["...", ...]}`, `{"grammar": "..."}` or `{"structural_tag": {...}}`.

    Raises InvalidRequest for a value out of range.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    logit_bias: dict[str, float] | None = None
    constraint: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        _check_numbers(self)
        for name, (least, most) in _RANGES.items():
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


# The least and the greatest value of each field.
_RANGES: dict[str, tuple[float, float]] = {
    "max_tokens": (1, MAX_TOKENS),
    "min_tokens": (0, MAX_TOKENS),
    "temperature": (0, 100),
    "top_p": (0, 1),
    "top_k": (0, MAX_TOKENS),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (0.01, 100),
    "logprobs": (0, MAX_LOGPROBS),
}


def _check_numbers(sampling: Sampling) -> None:
    """Raise InvalidRequest for the first field that must be a number and is none."""
    for name in (*_RANGES, "seed"):
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
