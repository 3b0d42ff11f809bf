"""How a ChatWeftline describes itself to LangChain: names, parameters, abilities, token estimates.

What BaseChatOpenAI leaves to ChatOpenAI is here as it is there. A ChatWeftline is no ChatOpenAI,
because its saved JSON would name OpenAI's key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.language_models import (
    LangSmithParams,
    LanguageModelInput,
    ModelProfile,
)
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tools import BaseTool
from langchain_openai.chat_models.base import BaseChatOpenAI
from pydantic import model_validator

MOST_TOKENS = "max_completion_tokens"  # the name of `max_tokens` in callbacks and requests
# Bytes of UTF-8 in a token: 4 for English with today's tokenizers, fewer for other languages.
BYTES_PER_TOKEN = 4
# A chat template adds about this many tokens to each message, for its role and two marks.
TOKENS_PER_MESSAGE = 4


class DescribedChat(BaseChatOpenAI):
    """The part of a ChatWeftline that describes the model to LangChain."""

    @model_validator(mode="before")
    @classmethod
    def _take_most_tokens(cls, values: dict[str, Any]) -> dict[str, Any]:
        # With an alias, type checkers would refuse `max_tokens`.
        if MOST_TOKENS not in values:
            return values
        rest = {name: value for name, value in values.items() if name != MOST_TOKENS}
        return {**rest, "max_tokens": values[MOST_TOKENS]}

    @property
    def _llm_type(self) -> str:
        return "weftline"

    @property
    def lc_secrets(self) -> dict[str, str]:
        return {"openai_api_key": "WEFTLINE_API_KEY"}

    @classmethod
    def is_lc_serializable(cls) -> bool:
        return True

    @classmethod
    def get_lc_namespace(cls) -> list[str]:
        # LangChain's saved JSON names this module, so the class must stay in it.
        return ["langchain_weftline", "chat_models"]

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = "weftline"
        return params

    @property
    def _default_params(self) -> dict[str, Any]:
        return _renamed(super()._default_params)

    def _get_request_payload(
        self, input_: LanguageModelInput, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        return _renamed(super()._get_request_payload(input_, stop=stop, **kwargs))

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        if self.is_on_responses(kwargs):
            return super()._stream_responses(*args, **kwargs)
        return super()._stream(*args, **kwargs)

    def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        if self.is_on_responses(kwargs):
            return super()._astream_responses(*args, **kwargs)
        return super()._astream(*args, **kwargs)

    def is_on_responses(self, options: Mapping[str, Any]) -> bool:
        """Whether a call with these options goes to /v1/responses."""
        return bool(self._use_responses_api({**options, **self.model_kwargs}))

    def _resolve_model_profile(self) -> ModelProfile:
        """The abilities of every model behind this server.

        The context's length is the model's own.
        """
        return ModelProfile(
            text_inputs=True,
            image_inputs=False,
            audio_inputs=False,
            video_inputs=False,
            text_outputs=True,
            tool_calling=True,
            tool_choice=True,
            structured_output=True,
        )

    def get_token_ids(self, text: str) -> list[int]:
        """The ids given by `custom_get_token_ids`. The server's tokenizer stays in the server."""
        if self.custom_get_token_ids is None:
            raise NotImplementedError(
                "ChatWeftline has no tokenizer of its own: set custom_get_token_ids, "
                "or use get_num_tokens for an estimate"
            )
        return self.custom_get_token_ids(text)

    def get_num_tokens(self, text: str) -> int:
        """An estimate of one token for four bytes of UTF-8, unless `custom_get_token_ids` is set.

        The estimate needs neither the network nor a tokenizer package. For English text the
        estimate is within about a fifth of the true count.
        """
        if self.custom_get_token_ids is not None:
            return len(self.custom_get_token_ids(text))
        return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)

    def get_num_tokens_from_messages(
        self,
        messages: Sequence[BaseMessage],
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool] | None = None,
        **kwargs: Any,
    ) -> int:
        """An estimate: the texts by `get_num_tokens`, and four tokens for each message's frame."""
        texts = [self.get_num_tokens(str(message.text)) for message in messages]
        return sum(texts) + TOKENS_PER_MESSAGE * len(texts)


def _renamed(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters with ChatOpenAI's name of the most tokens."""
    if "max_tokens" in params:
        params[MOST_TOKENS] = params.pop("max_tokens")
    return params
