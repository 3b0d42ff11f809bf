"""Weftline: a LlamaIndex LLM on the OpenAI-compatible endpoint of a weftline server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
    MessageRole,
)
from llama_index.core.bridge.pydantic import (
    Field,
    PrivateAttr,
    SecretStr,
    field_validator,
)
from llama_index.core.constants import DEFAULT_NUM_OUTPUTS, DEFAULT_TEMPERATURE
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.llms.weftline.model.model_requests import Asked, Asking
from llama_index.llms.weftline.model.object_fields import wanted
from llama_index.llms.weftline.model.openai_messages import (
    CHAT,
    TEXT,
    ChatSoFar,
    TextSoFar,
    as_chat,
    as_completion,
    chat_response,
    completion_response,
    message_body,
)
from llama_index.llms.weftline.model.structure import StructuredLLM
from llama_index.llms.weftline.trace.span_handler import listen

from weftline.contract.protocol import Criterion
from weftline.kit.server import Server, default_base_url, is_on, without_v1
from weftline.kit.server_fields import api_key_of_environment
from weftline.sdk.http import MAX_RETRIES, OnGraph


class Weftline(StructuredLLM):
    """An LLM served by weftline.

    Run `weftline serve`, or set `WEFTLINE_BASE_URL` and, where the server asks for one,
    `WEFTLINE_API_KEY`. Then, in place of any other LLM:

        Settings.llm = Weftline(temperature=0, max_tokens=256)

    The calls of a synthesizer or an extractor are sent ahead as one graph. LlamaIndex still runs as
    usual. A request with exactly the prompt and parameters of a call in the graph gets that call's
    answer. Any other is an ordinary request. Errors are those of `weftline.errors`.
    """

    model: str = Field(default="default", description="The model's name; `default` is the first.")
    temperature: float | None = Field(default=DEFAULT_TEMPERATURE, ge=0)
    max_tokens: int | None = Field(
        default=DEFAULT_NUM_OUTPUTS,
        gt=0,
        description="Tokens of the longest answer; None leaves it to the server.",
    )
    top_p: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    context_window: int | None = Field(
        default=None, gt=0, description="Tokens of the model's context; None asks the server."
    )
    criteria: Criterion | None = Field(
        default=None,
        description="What to optimise: latency (the default), ttft, tpot or throughput.",
    )
    is_chat_model: bool = True
    is_function_calling_model: bool = True
    additional_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="More fields for every request."
    )
    base_url: str = Field(
        default_factory=default_base_url,
        validate_default=True,
        description="The server's address; OpenAILike's name `api_base` is taken too.",
    )
    api_key: SecretStr | None = Field(default_factory=api_key_of_environment, exclude=True)
    timeout: float | None = Field(
        default=600.0, gt=0, description="Seconds to wait for an answer; None waits for ever."
    )
    max_retries: int = Field(
        default=MAX_RETRIES, ge=0, description="How often a refused request is sent again."
    )
    default_headers: dict[str, str] | None = Field(
        default=None, exclude=True, description="Headers for every request."
    )
    ahead: bool = Field(
        default_factory=lambda: is_on("WEFTLINE_AHEAD"),
        description="Send the calls of synthesizers and extractors as one graph.",
    )
    provenance: bool = Field(
        default_factory=lambda: is_on("WEFTLINE_PROVENANCE"),
        description="Tell the server which template and arguments made a prompt.",
    )
    on_graph: OnGraph | None = Field(
        default=None, exclude=True, description="Called with each graph that ran, with its times."
    )

    _asking: Asking = PrivateAttr()

    def __init__(self, model: str = "default", **data: Any) -> None:
        """Set the fields above; `api_base` sets `base_url`. Raises TypeError for other names."""
        if "api_base" in data:
            if "base_url" in data:
                raise TypeError("base_url and api_base are one setting: give one of them")
            data["base_url"] = data.pop("api_base")
        if unknown := sorted(data.keys() - type(self).model_fields.keys() - {"class_name"}):
            raise TypeError(_refusal(unknown[0]))
        super().__init__(model=model, **data)

    @field_validator("base_url", mode="before")
    @classmethod
    def _without_v1(cls, url: str | None) -> str:
        return without_v1(url or default_base_url())

    def model_post_init(self, context: Any, /) -> None:
        """Prepare for requests. Nothing is connected yet."""
        super().model_post_init(context)
        self._asking = Asking(self._server())
        if self.ahead or self.provenance:
            listen()

    def _server(self) -> Server:
        return Server(
            self.base_url,
            None if self.api_key is None else self.api_key.get_secret_value(),
            tuple((self.default_headers or {}).items()),
            self.timeout,
            self.max_retries,
        )

    @classmethod
    def class_name(cls) -> str:
        return "Weftline"

    @property
    def metadata(self) -> LLMMetadata:
        """The limits that LlamaIndex uses to pack prompts, in tokens.

        The server is asked once for the context window.
        """
        return LLMMetadata(
            context_window=self.context_window or self.asking.context_limit(self.model),
            num_output=self.max_tokens or DEFAULT_NUM_OUTPUTS,
            is_chat_model=self.is_chat_model,
            is_function_calling_model=self.is_function_calling_model,
            model_name=self.asking.served_name(self.model),
        )

    @property
    def asking(self) -> Asking:
        """The part that sends requests and knows the graphs that were sent ahead."""
        server = self._server()
        if self._asking.server != server:  # a field was set, or a copy has other ones
            self._asking = Asking(server)
        return self._asking

    def parameters(self) -> dict[str, Any]:
        """The fields that every request of this LLM has."""
        named = {
            "model": self.model,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "top_p": self.top_p,
            "seed": self.seed,
            "stop": self.stop,
            "criteria": self.criteria,
        }
        given = {key: value for key, value in named.items() if value is not None}
        return {**given, **self.additional_kwargs}

    def _chat(self, messages: Sequence[ChatMessage], options: Mapping[str, Any]) -> Asked:
        """A chat request. Raises InvalidRequest for blocks that are not text."""
        bodies = [message_body(message) for message in messages]
        texts = [body["content"] for body in bodies]
        return self.asking.ask(self, CHAT, {"messages": bodies}, _request(self, options, texts))

    def _text(self, prompt: str, formatted: bool, options: Mapping[str, Any]) -> Asked:
        if not formatted and self.completion_to_prompt is not None:
            prompt = self.completion_to_prompt(prompt)
        return self.asking.ask(self, TEXT, {"prompt": prompt}, _request(self, options, [prompt]))

    def _as_text(
        self, messages: Sequence[ChatMessage], options: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """The arguments of a completion in place of a chat, for a model without a chat template.

        A request with tools stays a chat, because completions have none.
        """
        if self.is_chat_model or "tools" in options:
            return None
        assert self.messages_to_prompt is not None, "LlamaIndex sets its own"
        return {"prompt": self.messages_to_prompt(messages), "formatted": True, **options}

    def _chat_of(self, prompt: str, formatted: bool) -> list[ChatMessage]:
        if not formatted and self.completion_to_prompt is not None:
            prompt = self.completion_to_prompt(prompt)
        return [ChatMessage(role=MessageRole.USER, content=prompt)]

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        if (text := self._as_text(messages, kwargs)) is not None:
            return as_chat(self.complete(**text))
        return chat_response(self.asking.answer(self._chat(messages, kwargs)))

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        if (text := self._as_text(messages, kwargs)) is not None:
            return as_chat(await self.acomplete(**text))
        return chat_response(await self.asking.aanswer(self._chat(messages, kwargs)))

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        if (text := self._as_text(messages, kwargs)) is not None:
            return (as_chat(part) for part in self.stream_complete(**text))
        chunks = self.asking.chunks(self._chat(messages, kwargs))

        def responses() -> ChatResponseGen:
            so_far = ChatSoFar()
            for chunk in chunks:
                yield so_far.take(chunk)

        return responses()

    @llm_chat_callback()
    async def astream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> ChatResponseAsyncGen:
        if (text := self._as_text(messages, kwargs)) is not None:
            parts = await self.astream_complete(**text)
            return (as_chat(part) async for part in parts)
        chunks = self.asking.chunks(self._chat(messages, kwargs))

        async def responses() -> ChatResponseAsyncGen:
            so_far = ChatSoFar()
            async for chunk in chunks:
                yield so_far.take(chunk)

        return responses()

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        if self.is_chat_model:
            return as_completion(
                chat_response(
                    self.asking.answer(self._chat(self._chat_of(prompt, formatted), kwargs))
                )
            )
        return completion_response(self.asking.answer(self._text(prompt, formatted, kwargs)))

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        if self.is_chat_model:
            asked = self._chat(self._chat_of(prompt, formatted), kwargs)
            return as_completion(chat_response(await self.asking.aanswer(asked)))
        asked = self._text(prompt, formatted, kwargs)
        return completion_response(await self.asking.aanswer(asked))

    @llm_completion_callback()
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseGen:
        chunks, take = self._completion_stream(prompt, formatted, kwargs)

        def responses() -> CompletionResponseGen:
            for chunk in chunks:
                yield take(chunk)

        return responses()

    @llm_completion_callback()
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseAsyncGen:
        chunks, take = self._completion_stream(prompt, formatted, kwargs)

        async def responses() -> CompletionResponseAsyncGen:
            async for chunk in chunks:
                yield take(chunk)

        return responses()

    def _completion_stream(
        self, prompt: str, formatted: bool, options: Mapping[str, Any]
    ) -> tuple[Any, Callable[[Mapping[str, Any]], CompletionResponse]]:
        if not self.is_chat_model:
            asked = self._text(prompt, formatted, options)
            return self.asking.chunks(asked), TextSoFar().take
        asked, so_far = self._chat(self._chat_of(prompt, formatted), options), ChatSoFar()
        return self.asking.chunks(asked), lambda chunk: as_completion(so_far.take(chunk))


# The arguments of OpenAILike that Weftline does not have, and what to do instead.
_OTHERWISE = {
    "http_client": "its requests go over connections of its own",
    "async_http_client": "its requests go over connections of its own",
    "openai_client": "its requests go over connections of its own",
    "async_openai_client": "its requests go over connections of its own",
    "reuse_client": "its connections are always reused",
    "api_version": "a weftline server has one version of its API",
    "tokenizer": "the server counts the tokens",
    "max_new_tokens": "give max_tokens",
    "should_use_structured_outputs": "set is_function_calling_model=False instead",
}


def _refusal(argument: str) -> str:
    """The error message for an argument that Weftline does not have."""
    advice = _OTHERWISE.get(argument, "give request fields as additional_kwargs")
    return f"Weftline takes no argument {argument!r}: {advice}"


# A request with one of these fields already gives the form of the answer.
_SHAPES = ("response_format", "constraint", "tools")


def _request(llm: Weftline, options: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """The fields of a request beside the prompt. An option that is None is left out."""
    fields = {**llm.parameters(), **options}
    if not any(shape in fields for shape in _SHAPES):
        fields |= wanted(texts)
    return {key: value for key, value in fields.items() if value is not None}
