"""ChatWeftline: a LangChain chat model on the OpenAI-compatible endpoint of a weftline server."""

from __future__ import annotations

import os
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, closing
from typing import Any, Self, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import (
    Runnable,
    RunnableBinding,
    RunnableParallel,
    RunnableSequence,
)
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema
from pydantic import BaseModel, Field, SecretStr, field_validator, model_validator

from langchain_weftline.ahead.prefetch import take
from langchain_weftline.early_tools.streamed_answers import (
    StreamedAnswer,
    is_chunked,
    see_chunk,
    streamed_answer,
)
from langchain_weftline.model.connection_settings import server_of
from langchain_weftline.model.envelope import Sending, keep_pieces, sending
from langchain_weftline.model.message_thoughts import add_thoughts, keep_thoughts
from langchain_weftline.model.model_profile import DescribedChat
from langchain_weftline.model.patience import Patience
from langchain_weftline.model.transport import Proxies, SharedClient, async_client, client
from langchain_weftline.trace.prompt_origins import listen
from weftline.kit.early_tools import EarlyTurn, early_turn
from weftline.kit.run_sessions import OURS
from weftline.kit.server import NO_KEY, Server, default_api_key, default_base_url, is_on, without_v1

# If the user sets one of these, the model uses the user's connections.
_SYNC = frozenset({"http_socket_options", "http_client", "client", "root_client"})
_ASYNC = frozenset(
    {"http_socket_options", "http_async_client", "async_client", "root_async_client"}
)
# Without this option, ChatOpenAI asks for a stream where `streaming` is set, and cannot read it.
_WHOLE = {"stream": False}
# Closing a session waits no longer than this, because an unused session expires in the server.
DELETE_TIMEOUT_S = 2.0


def _api_key() -> SecretStr:
    # The openai client requires a key. A server on loopback does not read it.
    return SecretStr(default_api_key() or NO_KEY)


def _provenance() -> bool:
    return is_on("WEFTLINE_PROVENANCE")


class ChatWeftline(DescribedChat):
    """A chat model served by weftline.

    Setup:
        Run `weftline serve`, or set `WEFTLINE_BASE_URL` (with or without `/v1`) and, where the
        server asks for one, `WEFTLINE_API_KEY`.

    Instantiate:
        ```python
        from langchain_weftline import ChatWeftline

        llm = ChatWeftline(temperature=0, max_tokens=256)
        ```

    Invoke, stream, batch, and their async forms, as with any chat model:
        ```python
        llm.invoke("Name three rivers.").content
        ```

    In a chain whose calls the server begins early: `accelerate(prompt | llm | parser | ...)`.

    Errors are those of the openai client (`openai.APIStatusError` and its subclasses), so retries
    and fallbacks written for ChatOpenAI work unchanged.
    """

    model_name: str = Field(default="default", alias="model")
    """The model's name at the server. `default` is the server's first model."""
    openai_api_base: str | None = Field(
        default_factory=default_base_url, alias="base_url", validate_default=True
    )
    openai_api_key: SecretStr | Callable[[], str] | Callable[[], Awaitable[str]] | None = Field(
        default_factory=_api_key, alias="api_key"
    )
    stream_usage: bool | None = True
    provenance: bool = Field(default_factory=_provenance, exclude=True)
    """Whether to tell the server which template and values made a prompt, and its run.

    The default is True, or False if the environment variable WEFTLINE_PROVENANCE is 0.
    """

    early_tools: Any = Field(default=None, exclude=True)
    """An EarlyTools, for a graph of your own. Its tools start while the model still writes."""

    @field_validator("openai_api_base")
    @classmethod
    def _with_v1(cls, url: str | None) -> str:
        return f"{without_v1(url or default_base_url())}/v1"

    @property
    def server_url(self) -> str:
        """The server's address without the OpenAI prefix."""
        assert self.openai_api_base is not None, "the validator always sets it"
        return self.openai_api_base.removesuffix("/v1")

    @property
    def server(self) -> Server:
        """The server's address, without the OpenAI prefix, and what requests to it carry."""
        return server_of(self)

    @property
    def patience(self) -> Patience:
        """How long a call waits, and how often it is retried."""
        return Patience.of(self.request_timeout, self.max_retries)

    @model_validator(mode="before")
    @classmethod
    def _share_connections(cls, values: dict[str, Any]) -> dict[str, Any]:
        proxies = Proxies.of(values.get("openai_proxy", os.environ.get("OPENAI_PROXY")))
        if _is_free(_SYNC, values):
            values = {**values, "http_client": client(proxies)}
        if _is_free(_ASYNC, values):
            values = {**values, "http_async_client": async_client(proxies)}
        if isinstance(values.get("http_client"), SharedClient):
            # LangChain takes a proxy or clients, not both. `_listen` sets the proxy again.
            values = {**values, "openai_proxy": None}
        return values

    @model_validator(mode="after")
    def _listen(self) -> Self:
        if isinstance(self.http_client, SharedClient):
            self.openai_proxy = self.http_client.proxies.own
        if self.provenance:
            listen()
        return self

    def _convert_input(self, model_input: LanguageModelInput) -> PromptValue:
        return keep_pieces(super()._convert_input(model_input))

    def _get_request_payload(
        self, input_: LanguageModelInput, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        payload: dict[str, Any] = super()._get_request_payload(input_, stop=stop, **kwargs)
        if (sent := payload.get("messages")) is not None:
            add_thoughts(sent, self._convert_input(input_).to_messages())
        return payload

    def with_structured_output(
        self, schema: dict[str, Any] | type | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, dict[str, Any] | BaseModel]:
        """Like ChatOpenAI's, but an answer of `json_mode` must also match the schema.

        The default method is `json_schema`: the server constrains decoding to the schema.
        """
        kwargs.setdefault("method", "json_schema")
        made = super().with_structured_output(schema, **kwargs)
        if kwargs["method"] != "json_mode" or schema is None:
            return made
        assert isinstance(made, RunnableSequence), "a model, and the parser of its answer"
        try:
            wanted = convert_to_json_schema(schema)
        except ValueError:  # a dict without a title is no schema to LangChain
            return made
        form = {"type": "json_object", "json_schema": {"name": "answer", "schema": wanted}}
        model, *rest = made.steps
        if isinstance(model, RunnableParallel):  # with include_raw
            raw = cast(RunnableBinding[Any, Any], model.steps__["raw"])
            return RunnableSequence(RunnableParallel(raw=raw.bind(response_format=form)), *rest)
        return RunnableSequence(model.bind(response_format=form), *rest)

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: dict[str, Any] | str | bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Bind tools. Those that `early_tools` allows may start before the answer ends.

        `tool_choice` is a parameter here because callers look for it in the signature.
        """
        if self.early_tools is not None:
            self.early_tools.learn(tools)
        return super().bind_tools(tools, tool_choice=tool_choice, **kwargs)

    def _turn(self) -> EarlyTurn[Any] | None:
        """The tools that may start during a model call; None if none may."""
        if self.early_tools is None:
            return early_turn()
        turn: EarlyTurn[Any] = self.early_tools.turn()
        return turn

    def _sending(
        self,
        messages: list[BaseMessage],
        run_manager: CallbackManagerForLLMRun | AsyncCallbackManagerForLLMRun | None,
    ) -> Sending:
        if not self.provenance:
            return Sending(None)
        parent = None if run_manager is None else run_manager.parent_run_id
        return sending(self, messages, parent)

    def delete_session(self, id: str) -> None:
        """Close a session of the server, without retries."""
        if self.root_client is not None:
            options = {"max_retries": 0, "timeout": DELETE_TIMEOUT_S}
            self.root_client.delete(f"/session/{id}", cast_to=object, options=options)

    def beat_session(self, id: str) -> None:
        """Send a heartbeat of a session, without retries."""
        if self.root_client is not None:
            options = {"max_retries": 0, "timeout": DELETE_TIMEOUT_S}
            self.root_client.post(f"/session/{id}/heartbeat", cast_to=object, options=options)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        kwargs |= _WHOLE
        taken = take(self, messages, {"stop": stop, **kwargs}, run_manager)
        if taken is not None and (answer := taken.answer()) is not None:
            return self._create_chat_result(answer)
        with self._sending(messages, run_manager) as sent:
            sent.join(kwargs, self.extra_body)
            result = None
            if (turn := self._turn()) is not None and is_chunked(self, kwargs):
                with streamed_answer(turn, retried=self.max_retries != 0) as said:
                    for _ in super()._stream(messages, stop, stream_usage=True, **kwargs):
                        pass
                    result = self._create_chat_result(said.completion())
            if result is None:
                result = super()._generate(messages, stop, run_manager, **kwargs)
            sent.take_result(result)
        return result

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        kwargs |= _WHOLE
        taken = take(self, messages, {"stop": stop, **kwargs}, run_manager)
        if taken is not None and (answer := await taken.aanswer()) is not None:
            return self._create_chat_result(answer)
        with self._sending(messages, run_manager) as sent:
            sent.join(kwargs, self.extra_body)
            result = None
            if (turn := self._turn()) is not None and is_chunked(self, kwargs):
                with streamed_answer(turn, retried=self.max_retries != 0) as said:
                    async for _ in super()._astream(messages, stop, stream_usage=True, **kwargs):
                        pass
                    result = self._create_chat_result(said.completion())
            if result is None:
                result = await super()._agenerate(messages, stop, run_manager, **kwargs)
            sent.take_result(result)
        return result

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        taken = take(self, messages, {"stop": stop, **kwargs}, run_manager, streams=True)
        began = False
        events = () if taken is None else taken.chunks()
        for generation in self._converted(events, self._should_stream_usage(**kwargs)):
            began = True
            if run_manager is not None:
                run_manager.on_llm_new_token(generation.text, chunk=generation)
            yield generation
        if began:
            return
        with self._sending(messages, run_manager) as sent:
            sent.join(kwargs, self.extra_body)
            turn = self._turn()
            made = super()._stream(messages, stop, run_manager, **kwargs)
            with closing(cast(Generator[ChatGenerationChunk], made)) as chunks:
                for chunk in chunks:
                    sent.take_chunk(chunk)
                    see_chunk(turn, chunk)
                    yield chunk
            sent.finish()

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        taken = take(self, messages, {"stop": stop, **kwargs}, run_manager, streams=True)
        if taken is not None:
            began = False
            async for event in taken.achunks():
                began = True
                for generation in self._converted([event], self._should_stream_usage(**kwargs)):
                    if run_manager is not None:
                        await run_manager.on_llm_new_token(generation.text, chunk=generation)
                    yield generation
            if began:
                return
        with self._sending(messages, run_manager) as sent:
            sent.join(kwargs, self.extra_body)
            turn = self._turn()
            made = super()._astream(messages, stop, run_manager, **kwargs)
            async with aclosing(cast(AsyncGenerator[ChatGenerationChunk], made)) as chunks:
                async for chunk in chunks:
                    sent.take_chunk(chunk)
                    see_chunk(turn, chunk)
                    yield chunk
            sent.finish()

    def _converted(
        self, chunks: Iterable[dict[str, Any]], shows_usage: bool
    ) -> Iterator[ChatGenerationChunk]:
        for chunk in chunks:
            if not chunk["choices"] and not shows_usage:
                continue
            made = self._convert_chunk_to_generation_chunk(chunk, AIMessageChunk, {})
            if made is not None:
                yield made

    def _create_chat_result(
        self, response: Any, generation_info: dict[str, Any] | None = None
    ) -> ChatResult:
        result = super()._create_chat_result(response, generation_info)
        is_json = isinstance(response, dict)
        choices = response["choices"] if is_json else response.choices
        for generation, choice in zip(result.generations, choices, strict=True):
            generation.message.response_metadata["model_provider"] = "weftline"
            keep_thoughts(generation.message, choice["message"] if is_json else choice.message)
        ours = response.get(OURS) if isinstance(response, dict) else getattr(response, OURS, None)
        if ours is not None and result.llm_output is not None:
            result.llm_output[OURS] = ours
        return result

    def _combine_llm_outputs(self, llm_outputs: list[dict[str, Any] | None]) -> dict[str, Any]:
        # LangChain warns about each count that is None.
        return super()._combine_llm_outputs([_without_none(output) for output in llm_outputs])

    def _convert_chunk_to_generation_chunk(
        self,
        chunk: dict[str, Any],
        default_chunk_class: type,
        base_generation_info: dict[str, Any] | None,
    ) -> ChatGenerationChunk | None:
        StreamedAnswer.hear(chunk)
        generation = super()._convert_chunk_to_generation_chunk(
            chunk, default_chunk_class, base_generation_info
        )
        if generation is not None:
            generation.message.response_metadata["model_provider"] = "weftline"
            for choice in chunk.get("choices") or ():
                keep_thoughts(generation.message, choice.get("delta") or {})
            if (ours := chunk.get(OURS)) is not None:
                generation.generation_info = {**(generation.generation_info or {}), OURS: ours}
        return generation


def _is_free(names: frozenset[str], values: Mapping[str, Any]) -> bool:
    """Whether none of these settings has a value."""
    return all(values.get(name) is None for name in names)


def _without_none(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_none(item) for key, item in value.items() if item is not None}
