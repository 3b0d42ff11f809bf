"""Requests to SGLang's native /generate, and what its answers add."""

from __future__ import annotations

from typing import Any

from weftline.contract.parameters import EngineApi, sent
from weftline_engine import api
from weftline_engine.remote.openai.endpoint import EndpointError
from weftline_engine.remote.openai.endpoint_constraints import sglang_sampling
from weftline_engine.remote.openai.remote import AnswerPiece, TokenCounts
from weftline_engine.remote.openai.scheduling import EndpointScheduler, fields
from weftline_engine.remote.sglang.facts import SGLangFacts

REASONS = {"stop": api.FinishReason.STOP, "length": api.FinishReason.LENGTH}


def generate_body(op: api.Op, tokens: tuple[int, ...], facts: SGLangFacts) -> dict[str, Any]:
    """The request for an op's answer, as a stream."""
    assert op.sampling is not None, "a generate has sampling parameters"
    body = {
        **_common(op, tokens, facts),
        "rid": f"{op.id}.{op.attempt}",
        "sampling_params": sampling_params(op.sampling),
        "stream": True,
    }
    if op.sampling.logprobs is not None:
        body |= {"return_logprob": True, "top_logprobs_num": op.sampling.logprobs}
    return body


def fill_body(op: api.Op, tokens: tuple[int, ...], facts: SGLangFacts) -> dict[str, Any]:
    """A request that only fills the prompt. SGLang generates at least one token."""
    sampling = {"max_new_tokens": 1, "temperature": 0.0}
    return {**_common(op, tokens, facts), "sampling_params": sampling}


def _common(op: api.Op, tokens: tuple[int, ...], facts: SGLangFacts) -> dict[str, Any]:
    """The fields of every request: the prompt, the tenant, the session and the place in the plan.

    SGLang has had two names for what keeps equal prompts apart. A version takes one or both.
    """
    body: dict[str, Any] = {"input_ids": tokens}
    if op.salt:
        body |= {"extra_key": op.salt, "cache_salt": op.salt}
    if op.hints.application:
        body["session_id"] = op.hints.application
    if facts.priorities:
        place = fields(EndpointScheduler.SGLANG, op)["priority"]
        body["priority"] = -place if facts.low_first else place
    return body


def sampling_params(sampling: api.SamplingParams) -> dict[str, Any]:
    """SGLang's own names of the parameters, without those that are off."""
    body = {"max_new_tokens": sampling.max_tokens, **sent(sampling, EngineApi.SGLANG)}
    more = {
        "stop": [] if sampling.block else list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
        "logit_bias": {str(token): value for token, value in sampling.logit_bias},
    }
    body |= {name: value for name, value in more.items() if value}
    if sampling.seed is not None:
        body["sampling_seed"] = sampling.seed
    if sampling.constraint is not None:
        body |= sglang_sampling(sampling.constraint)
    return body


class AnswerReader:
    """Turns the events of one answer into pieces.

    By default each event has the whole answer so far. A stop string is cut off at the end only, so
    text that may be the beginning of one is held back until then.
    """

    def __init__(self, sampling: api.SamplingParams, increments: bool) -> None:
        self._stop = () if sampling.block else sampling.stop
        self._tops = sampling.logprobs
        self._increments = increments
        self._text = ""
        self.tokens: list[int] = []  # of the whole answer so far
        self._told = 0  # characters

    def read(self, event: dict[str, Any]) -> AnswerPiece:
        """The piece that an event adds. Raises EndpointError."""
        meta, text, ids = event.get("meta_info"), event.get("text"), event.get("output_ids")
        if not isinstance(meta, dict) or not isinstance(text, str) or not isinstance(ids, list):
            raise EndpointError(
                "EngineFailed", "SGLang returned no token ids: use a newer SGLang", broken=True
            )
        reason = _reason(meta.get("finish_reason"))
        before = len(self.tokens)
        self._text = self._text + text if self._increments else text
        self.tokens = [*self.tokens, *ids] if self._increments else ids
        end = len(self._text) if reason else len(self._text) - _held_back(self._text, self._stop)
        told, self._told = self._told, max(self._told, end)
        return AnswerPiece(
            text=self._text[told : self._told],
            tokens=tuple(self.tokens[before:]),
            reason=reason,
            counts=_counts(meta),
            stopped_by=_stopped_by(meta),
            **self._logprobs(meta, before),
        )

    def _logprobs(self, meta: dict[str, Any], before: int) -> dict[str, Any]:
        if self._tops is None:
            return {}
        found = meta.get("output_token_logprobs") or []
        tops = meta.get("output_top_logprobs") or []
        if not self._increments:
            found, tops = found[before:], tops[before:]
        likeliest = [pair for top in tops for pair in (top or [])[: self._tops]]
        return {
            "logprobs": tuple(one[0] for one in found),
            "top_tokens": tuple(one[1] for one in likeliest),
            "top_logprobs": tuple(one[0] for one in likeliest),
        }


def _stopped_by(meta: dict[str, Any]) -> str:
    """The stop string that ended the answer, "" for a token or another end."""
    found = meta.get("finish_reason")
    matched = found.get("matched") if isinstance(found, dict) else None
    return matched if isinstance(matched, str) else ""


def _held_back(text: str, stops: tuple[str, ...]) -> int:
    """How many of the last characters may be the beginning of a stop string."""
    return max(
        (size for stop in stops for size in range(1, len(stop) + 1) if text.endswith(stop[:size])),
        default=0,
    )


def _reason(told: Any) -> api.FinishReason | None:
    """Read the finish reason. Raises EndpointError if the answer did not end properly."""
    if told is None:
        return None
    kind = told.get("type") if isinstance(told, dict) else told
    if kind not in REASONS:
        why = str(told.get("message") or kind) if isinstance(told, dict) else str(kind)
        raise EndpointError(
            "EngineFailed",
            f"SGLang gave up on the answer ({why[:200]})",
            retryable=True,
            broken=True,
        )
    return REASONS[kind]


def _counts(meta: dict[str, Any]) -> TokenCounts | None:
    prompt = meta.get("prompt_tokens")
    if not isinstance(prompt, int):
        return None
    return TokenCounts(prompt, meta.get("cached_tokens") or 0, meta.get("completion_tokens"))


def counts_of_fill(answer: dict[str, Any], tokens: int) -> TokenCounts:
    """The counts of a fill, whose one token nobody asked for."""
    meta = answer.get("meta_info")
    counts = _counts(meta) if isinstance(meta, dict) else None
    return TokenCounts(tokens, 0 if counts is None else counts.cached, 0)
