"""OpenAI's request and response shapes, as far as we serve them; what we do not serve is refused.

Fields that change nothing here (`user`, `metadata`, `store`, …) are ignored, as OpenAI clients send
ever new ones; fields that would change the answer and that we do not honour are a 400 naming them.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any, Literal

from weftline.errors import InvalidRequest
from weftline.protocol import Call, InOut, Message, Placeholder, Sampling, Segment
from weftline_engine.api import FinishReason, Usage
from weftline_server.routes.provenance import Inputs, Provenance
from weftline_server.session.session import Session

OUTPUT = "out"

_LOOSE = {"extra": "ignore", "allow_inf_nan": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    type: Literal["text"]
    text: str

    __pydantic_config__ = _LOOSE


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    role: str
    content: str | tuple[TextPart, ...] | None = None
    name: str | None = None

    __pydantic_config__ = _LOOSE

    @property
    def text(self) -> str:
        if isinstance(self.content, tuple):
            return "".join(part.text for part in self.content)
        return self.content or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    include_usage: bool = False

    __pydantic_config__ = _LOOSE


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The fields that both endpoints share."""

    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | tuple[str, ...] | None = None
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    logit_bias: dict[str, Any] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_format: dict[str, Any] | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    tool_choice: str | dict[str, Any] | None = None
    functions: tuple[dict[str, Any], ...] | None = None
    cache_salt: str | None = None
    session_id: str | None = None  # ours: run in this session, so that its graph shows the call

    __pydantic_config__ = _LOOSE

    def check(self) -> None:
        """Raise InvalidRequest for the first field that asks for what we do not do."""
        neutral: dict[str, tuple[Any, ...]] = {
            "n": (1,),
            "best_of": (1,),
            "echo": (False,),
            "suffix": ("",),
            "logprobs": (False,),
            "top_logprobs": (0,),
            "logit_bias": ({},),
            "presence_penalty": (0,),
            "frequency_penalty": (0,),
            "response_format": ({"type": "text"},),
            "tools": ((),),
            "tool_choice": ("none", "auto"),
            "functions": ((),),
        }
        for name, values in neutral.items():
            value = getattr(self, name)
            if value is not None and value not in values:
                raise InvalidRequest(f"{name} is not served yet: leave it out", param=name)
        if self.cache_salt is not None:
            raise InvalidRequest(
                "cache_salt is derived by the server from your key: leave it out",
                param="cache_salt",
            )

    def sampling(self) -> Sampling:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop or ()
        limit = self.max_completion_tokens
        return Sampling(
            max_tokens=self.max_tokens if limit is None else limit,
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            stop=stop,
            ignore_eos=self.ignore_eos,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(Completion):
    """The body of POST /v1/chat/completions."""

    messages: tuple[ChatMessage, ...]
    weftline: Provenance | None = None  # ours: the run it belongs to, and where its text is from

    def call(self, session: Session) -> Call:
        """The same request as a call with one output, in `session`."""
        if not self.messages:
            raise InvalidRequest("messages is empty", param="messages")
        said = self.weftline or Provenance()
        inputs = Inputs(session, {OUTPUT})
        messages = tuple(
            Message(
                role=message.role,
                content=inputs.segments(said.pieces(index, message.text)),
                name=message.name,
            )
            for index, message in enumerate(self.messages)
        )
        answer = Message(role="assistant", content=(Segment(output=OUTPUT),))
        return Call(
            name=said.name,
            prompt=(*messages, answer),
            placeholders=(*inputs.placeholders, _output(self.sampling())),
            model=self.model,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest(Completion):
    """The body of POST /v1/completions; one prompt a request."""

    prompt: str | tuple[str, ...]

    @property
    def weftline(self) -> None:
        """A text completion says nothing of where its text is from."""

    def call(self, session: Session) -> Call:
        prompts = (self.prompt,) if isinstance(self.prompt, str) else self.prompt
        if len(prompts) != 1 or not prompts[0]:
            raise InvalidRequest("prompt is one text that is not empty", param="prompt")
        return Call(
            name="completion",
            prompt=(Segment(text=prompts[0]), Segment(output=OUTPUT)),
            placeholders=(_output(self.sampling()),),
            model=self.model,
        )


def _output(sampling: Sampling) -> Placeholder:
    return Placeholder(name=OUTPUT, in_out=InOut.OUT, sampling=sampling)


@dataclass(frozen=True, slots=True)
class Shape:
    """How one endpoint's answers look."""

    prefix: str
    whole: str
    chunk: str
    chat: bool


CHAT = Shape("chatcmpl", "chat.completion", "chat.completion.chunk", chat=True)
TEXT = Shape("cmpl", "text_completion", "text_completion", chat=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer in the making: it keeps the id, the time and the model of all its chunks.

    `ours`, where the request has a `weftline` object, names the session, the call, its variable.
    """

    shape: Shape
    model: str
    ours: dict[str, str] | None
    id: str
    created: int

    @staticmethod
    def new(shape: Shape, model: str, ours: dict[str, str] | None) -> Answer:
        return Answer(shape, model, ours, f"{shape.prefix}-{uuid.uuid4().hex}", int(time.time()))

    def whole(self, text: str, reason: FinishReason, usage: Usage) -> dict[str, Any]:
        content: dict[str, Any] = {"text": text}
        if self.shape.chat:
            content = {"message": {"role": "assistant", "content": text, "refusal": None}}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": reason.value}
        return {
            **self._head(self.shape.whole, [choice]),
            "usage": usage_body(usage),
            **self._ours(),
        }

    def chunk(
        self, text: str | None, reason: FinishReason | None = None, first: bool = False
    ) -> dict[str, Any]:
        content: dict[str, Any] = {"text": text or ""}
        if self.shape.chat:
            delta = {} if text is None else {"content": text}
            content = {"delta": {"role": "assistant", **delta} if first else delta}
        finish = None if reason is None else reason.value
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish}
        # At both ends: a client that leaves early can close the session all the same.
        ours = self._ours() if first or finish else {}
        return {**self._head(self.shape.chunk, [choice]), **ours}

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        return {**self._head(self.shape.chunk, []), "usage": usage_body(usage)}

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


def usage_body(usage: Usage) -> dict[str, Any]:
    """OpenAI's usage; `cached_tokens` came out of the KV cache."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
