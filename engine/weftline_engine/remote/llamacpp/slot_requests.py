"""Requests to llama-server's own endpoints, and what its answers say. It is pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weftline.contract.parameters import EngineApi, sent
from weftline_engine import api
from weftline_engine.bookkeeping.output import StopScanner
from weftline_engine.own.constraints.ebnf import is_ebnf
from weftline_engine.remote.llamacpp.slots import Seat
from weftline_engine.remote.openai.endpoint import EndpointError
from weftline_engine.remote.openai.endpoint_constraints import one_schema
from weftline_engine.remote.openai.remote import AnswerPiece, AnswerTimes, TokenCounts

# The constraints that llama-server follows as they are. A forced call of one tool is a JSON schema
# between fixed texts.
CONSTRAINTS = (api.Constraint.JSON_SCHEMA, api.Constraint.CHOICE, api.Constraint.GRAMMAR)
# Our order: llama.cpp by itself excludes tokens before it applies the temperature.
_SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p")
_GREEDY = ("penalties", "temperature")
_BANNED = -100.0


@dataclass(frozen=True, slots=True)
class Properties:
    """What a llama-server says about itself: `GET /props` and `GET /v1/models`.

    `build` is None where it was built without a number. `vocabulary` is None if it is not said.
    """

    slots: int
    context: int
    model: str
    template: str | None
    begin: str
    end: str
    build: int | None
    vocabulary: int | None


def properties(props: Mapping[str, Any], models: Mapping[str, Any]) -> Properties:
    """Read both answers. Raises EndpointError if they are not llama-server's."""
    try:
        settings = props["default_generation_settings"]
        slots, context = int(props["total_slots"]), int(settings["n_ctx"])
        path = str(props.get("model_alias") or props.get("model_path") or "")
    except (KeyError, TypeError, ValueError):
        raise EndpointError(
            "EngineFailed", "it is not a llama-server, or one that is too old: use a newer one"
        ) from None
    listed = models.get("data") or [{}]
    meta = listed[0].get("meta") if isinstance(listed, list) and listed else None
    size = meta.get("n_vocab") if isinstance(meta, dict) else None
    return Properties(
        slots=slots,
        context=context,
        model=path.rpartition("/")[2].removesuffix(".gguf"),
        template=props.get("chat_template") or None,
        begin=str(props.get("bos_token") or ""),
        end=str(props.get("eos_token") or ""),
        build=_build(str(props.get("build_info") or "")),
        vocabulary=size if isinstance(size, int) and size > 0 else None,
    )


def _build(text: str) -> int | None:
    """The number in "b7123-abcdef". A build without git says 0."""
    digits = text.removeprefix("b").partition("-")[0]
    return int(digits) or None if digits.isascii() and digits.isdigit() else None


def fill(
    tokens: Sequence[int], slot: int, *, fresh: bool = False, delimiters: Sequence[str] = ()
) -> dict[str, Any]:
    """The request that computes the tokens and generates nothing. A `fresh` one uses nothing of
    what the slot holds. The state is kept where a text of `delimiters` begins."""
    body = {"prompt": list(tokens), "n_predict": 0, **_place(slot, fresh)}
    return body | _delimited(delimiters)


def _delimited(texts: Sequence[str]) -> dict[str, Any]:
    """llama-server keeps a state where a message of the user begins, and finds these messages by
    what stands before them."""
    found = [{"role": "user", "delimiter": text} for text in texts]
    return {"message_delimiters": found} if found else {}


def generate(
    op: api.Op, tokens: Sequence[int], seat: Seat, limit: int, delimiters: Sequence[str] = ()
) -> tuple[dict[str, Any], str, str]:
    """The request of a generate, and the fixed texts before and after what it generates.

    Raises EndpointError for what llama-server cannot do.
    """
    assert op.sampling is not None, "a generate has sampling parameters"
    held, begin, end = _constraint(op.sampling.constraint)
    body = {
        "prompt": list(tokens),
        "stream": True,
        "n_predict": min(op.sampling.max_tokens, limit - len(tokens)),
        **_sampling(op.sampling, limit),
        **held,
        **_place(seat.slot, seat.fresh),
        **_delimited(delimiters),
    }
    return body, begin, end


def _place(slot: int, fresh: bool) -> dict[str, Any]:
    return {"id_slot": slot, "cache_prompt": not fresh, "return_tokens": True}


def _sampling(sampling: api.SamplingParams, limit: int) -> dict[str, Any]:
    if sampling.min_tokens:
        raise EndpointError(
            "InvalidRequest", "llama.cpp has no min_tokens: leave it out, or use another engine"
        )
    body: dict[str, Any] = {
        "samplers": list(_SAMPLERS if sampling.temperature else _GREEDY),
        **sent(sampling, EngineApi.LLAMA),
        "repeat_last_n": limit,
        # Text that may be the beginning of a stop string is held back. `AnswerEnd` needs it.
        "stop": [] if _ends_here(sampling) else [stop for stop in sampling.stop if stop],
    }
    if _ends_here(sampling):  # then there is no last event, which tells what was cached
        body["timings_per_token"] = True
    if sampling.marks:
        body["preserved_tokens"] = list(sampling.marks)
    if sampling.seed is not None:
        body["seed"] = sampling.seed % (1 << 32)
    if sampling.logprobs is not None:
        body["n_probs"] = max(1, sampling.logprobs)
    if sampling.logit_bias:
        body["logit_bias"] = [
            [token, False if value <= _BANNED else value] for token, value in sampling.logit_bias
        ]
    return body


def _constraint(constraint: str | None) -> tuple[dict[str, Any], str, str]:
    if constraint is None:
        return {}, "", ""
    match json.loads(constraint):
        case {"grammar": str(text)} if is_ebnf(text):
            return {"grammar": text}, "", ""
        case {"grammar": _}:
            raise EndpointError(
                "InvalidRequest",
                "llama.cpp reads grammars in EBNF, and this one is not: write it in EBNF",
            )
        case {"choice": texts}:
            words = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
            return {"grammar": f"root ::= {words}"}, "", ""
    schema, begin, end = one_schema(constraint)
    return {"json_schema": schema}, begin, end


@dataclass(frozen=True, slots=True)
class SlotEvent:
    """An event of a stream: text, at most one token, and how many tokens there are until now.

    `likeliest` has pairs of a token and its log probability, the best first. The last event has a
    `reason`. It tells how many tokens of the prompt were `cached`, how many the slot holds, and
    the `times` of the call's phases. Where we end the answer, every event tells what was cached.
    """

    text: str
    tokens: tuple[int, ...]
    made: int
    logprob: float | None = None
    likeliest: tuple[tuple[int, float], ...] = ()
    reason: api.FinishReason | None = None
    cached: int = 0
    held: int = 0
    times: AnswerTimes | None = None
    stopped_by: str = ""


_REASONS = {
    "eos": api.FinishReason.STOP,
    "word": api.FinishReason.STOP,
    "limit": api.FinishReason.LENGTH,
}


def read(event: Mapping[str, Any]) -> SlotEvent:
    """Read an event. Raises EndpointError if it is not one of /completion."""
    text, tokens, made = (
        event.get("content"),
        event.get("tokens") or [],
        event.get("tokens_predicted"),
    )
    if not isinstance(text, str) or not isinstance(tokens, list) or not isinstance(made, int):
        raise EndpointError(
            "EngineFailed", "llama-server returned no tokens: use a newer one", broken=True
        )
    timings = event.get("timings")
    timings = timings if isinstance(timings, dict) else {}
    found = timings.get("cache_n")
    cached = found if isinstance(found, int) else 0
    if event.get("stop") is not True:
        probability, likeliest = _probabilities(event.get("completion_probabilities"))
        return SlotEvent(text, tuple(tokens), made, probability, likeliest, cached=cached)
    reason = _REASONS.get(str(event.get("stop_type")))
    held = event.get("tokens_cached")
    phases = [timings.get(name) for name in ("prompt_ms", "predicted_ms")]
    seconds = [one / 1000 for one in phases if isinstance(one, int | float) and one >= 0]
    return SlotEvent(
        text,
        tuple(tokens),
        made,
        reason=reason or api.FinishReason.LENGTH,
        cached=cached,
        held=held if isinstance(held, int) else 0,
        times=AnswerTimes(*seconds) if len(seconds) == len(phases) else None,
        stopped_by=str(event.get("stopping_word") or ""),
    )


def _ends_here(sampling: api.SamplingParams) -> bool:
    """Whether answers have ends that llama-server does not know."""
    return bool(sampling.stop_token_ids or sampling.block)


class AnswerEnd:
    """Ends an answer at a token of `stop_token_ids`, which llama-server does not know, and then
    also at its stop strings. So it does where stop strings in a block of thoughts end nothing."""

    def __init__(self, sampling: api.SamplingParams, prompt: int) -> None:
        self._ids = frozenset(sampling.stop_token_ids)
        self._ends = _ends_here(sampling)
        self._scanner = StopScanner(sampling.stop, sampling.block)
        self._prompt = prompt

    def cut(self, event: SlotEvent) -> SlotEvent:
        """The event, as the last one if the answer ends in it. Its token has no text then."""
        if not self._ends:
            return event
        at_end = bool(self._ids.intersection(event.tokens))
        text = self._scanner.push("" if at_end else event.text)
        if (at_end or event.reason is not None) and not self._scanner.stopped:
            text += self._scanner.finish()
        if not at_end and not self._scanner.stopped:
            return replace(event, text=text)
        held = self._prompt + event.made - 1
        stop = api.FinishReason.STOP
        by = self._scanner.stopped_by
        return replace(event, text=text, reason=stop, held=held, stopped_by=by)


def _probabilities(found: Any) -> tuple[float | None, tuple[tuple[int, float], ...]]:
    if not isinstance(found, list) or not found or not isinstance(found[0], dict):
        return None, ()
    one = found[0]
    top = tuple((int(each["id"]), float(each["logprob"])) for each in one["top_logprobs"])
    return float(one["logprob"]), top


def is_last(event: Mapping[str, Any]) -> bool:
    """Whether a stream of /completion is complete with this event."""
    return event.get("stop") is True


def piece(op: api.Op, event: SlotEvent, text: str, counts: TokenCounts | None) -> AnswerPiece:
    """What an event adds to the answer of `op`."""
    plain = AnswerPiece(
        text=text,
        tokens=event.tokens,
        reason=event.reason,
        counts=counts,
        times=event.times,
        stopped_by=event.stopped_by,
    )
    wanted = None if op.sampling is None else op.sampling.logprobs
    if wanted is None or event.logprob is None:
        return plain
    best = event.likeliest[:wanted]
    return replace(
        plain,
        logprobs=(event.logprob,),
        top_tokens=tuple(token for token, _ in best),
        top_logprobs=tuple(value for _, value in best),
    )


def object_of(body: bytes) -> dict[str, Any]:
    """The JSON object of an answer. Raises EndpointError."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise EndpointError("EngineFailed", "it is not a llama-server: give its address")
    return value


def ids(answer: Mapping[str, Any]) -> tuple[int, ...]:
    """The tokens of an answer of /tokenize. Raises EndpointError."""
    found = answer.get("tokens")
    if not isinstance(found, list) or not all(isinstance(one, int) for one in found):
        raise EndpointError("EngineFailed", "llama-server tokenised nothing: use a newer one")
    return tuple(found)
