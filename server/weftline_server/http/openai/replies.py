"""The responses of OpenAI's endpoints: whole bodies, and the chunks of streams."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from weftline_engine.api import FinishReason, Usage
from weftline_server.http.event_stream import to_json
from weftline_server.prompt.tool_parser import Arguments, Called, Delta, Said, Thought
from weftline_server.session.task import PrimitiveTimes, TokenLogprob


@dataclass(frozen=True, slots=True)
class ReplyForm:
    """The form of one endpoint's responses: the prefix of ids, and the names of its objects."""

    prefix: str
    whole: str
    chunk: str
    chat: bool


CHAT = ReplyForm("chatcmpl", "chat.completion", "chat.completion.chunk", chat=True)
TEXT = ReplyForm("cmpl", "text_completion", "text_completion", chat=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """Makes the body of one response, or its chunks, which share an id, a time and a model.

    `ours` names the session, the call and its variable if the request has a `weftline` object.
    """

    shape: ReplyForm
    model: str
    ours: dict[str, str] | None
    id: str
    created: int

    @staticmethod
    def new(shape: ReplyForm, model: str, ours: dict[str, str] | None) -> Reply:
        """A reply with an id of its own, made now."""
        return Reply(shape, model, ours, f"{shape.prefix}-{uuid.uuid4().hex}", int(time.time()))

    def whole(self, choices: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        """The body of a response that is not streamed."""
        return {**self._head(self.shape.whole, choices), "usage": usage, **self._ours()}

    def choice(
        self, index: int, value: Any, step: PrimitiveTimes, logprobs: dict[str, Any] | None
    ) -> dict[str, Any]:
        """One choice of a whole response; `value` is text, or with tools the message."""
        content: dict[str, Any] = {"text": value}
        reason = step.reason
        assert reason is not None, "the call has ended"
        calls = False
        if self.shape.chat:
            message = {"role": "assistant", "content": value} if isinstance(value, str) else value
            calls = "tool_calls" in message
            content = {"message": {**message, "refusal": None}}
        return {
            "index": index,
            **content,
            "logprobs": logprobs,
            "finish_reason": finish_reason(reason, calls),
        }

    def chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish: str | None = None,
        first: bool = False,
    ) -> dict[str, Any]:
        """A part of choice `index`: for a chat its `delta`, else the delta's content as text."""
        content: dict[str, Any] = {"text": delta.get("content", "")}
        if self.shape.chat:
            content = {"delta": {"role": "assistant", **delta} if first else delta}
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": finish}
        # In the first chunk too, so that a client that leaves early can close the session.
        ours = self._ours() if first or finish else {}
        return {**self._head(self.shape.chunk, [choice]), **ours}

    def text_chunk(self, index: int) -> Callable[[str], str]:
        """A function from a text to the JSON of a chunk of choice `index`.

        Everything but the text is serialised only once.
        """
        mark = f"the text of {self.id}"
        before, after = to_json(self.chunk(index, {"content": mark})).split(to_json(mark))
        return lambda text: f"{before}{to_json(text)}{after}"

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The last chunk of a stream whose client asked for the usage."""
        return {**self._head(self.shape.chunk, []), "usage": usage}

    def _ours(self) -> dict[str, Any]:
        return {} if self.ours is None else {"weftline": self.ours}

    def _head(self, object: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def finish_reason(reason: FinishReason, calls: bool) -> str:
    """OpenAI's finish reason: a response that `calls` tools and was not cut off has its own."""
    return "tool_calls" if calls and reason is FinishReason.STOP else reason.value


def deltas_of(parts: Iterable[Delta]) -> list[dict[str, Any]]:
    """OpenAI's deltas of a response with tools. Parts that OpenAI's stream does not have are left
    out."""
    return [_delta(part) for part in parts if isinstance(part, Said | Thought | Called | Arguments)]


def _delta(part: Said | Thought | Called | Arguments) -> dict[str, Any]:
    match part:
        case Said(text):
            return {"content": text}
        case Thought(text):
            return {"reasoning_content": text}
        case Called(index, id, name):
            function = {"name": name, "arguments": ""}
            return {
                "tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]
            }
        case Arguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def logprobs_body(shape: ReplyForm, tokens: Sequence[TokenLogprob], start: int) -> dict[str, Any]:
    """Log probabilities in the endpoint's form; `start` is the first token's character offset."""
    if shape.chat:
        content = [{**_token(t), "top_logprobs": [_token(top) for top in t.top]} for t in tokens]
        return {"content": content, "refusal": None}
    offsets = []
    for token in tokens:
        offsets.append(start)
        start += len(token.text)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{top.text: top.logprob for top in token.top} for token in tokens],
        "text_offset": offsets,
    }


def _token(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.data)}


def usage_body(usages: Sequence[Usage], choices: int) -> dict[str, Any]:
    """OpenAI's usage of the calls with `usages`, where each prompt has `choices` calls in a row.

    A prompt counts once, whatever its number of choices. Its `cached_tokens` are the fewest of its
    calls, which are the first call's: the other calls also read the tokens that the first call
    computed. The prediction tokens are the engine's drafts; without drafts there is no such field.
    """
    prompts = [usages[at : at + choices] for at in range(0, len(usages), choices)]
    prompt = sum(same[0].prompt_tokens for same in prompts)
    cached = sum(min(one.cached_tokens for one in same) for same in prompts)
    output = sum(one.output_tokens for one in usages)
    body: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    if drafted := sum(one.drafted_tokens for one in usages):
        accepted = sum(one.accepted_tokens for one in usages)
        body["completion_tokens_details"] = {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        }
    return body
