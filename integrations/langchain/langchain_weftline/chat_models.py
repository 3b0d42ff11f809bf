"""ChatWeftline: a LangChain chat model on the OpenAI-compatible endpoint of a weftline server."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.language_models import LangSmithParams
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.tools import BaseTool
from langchain_openai.chat_models.base import BaseChatOpenAI
from pydantic import Field, SecretStr, field_validator

DEFAULT_BASE_URL = "http://127.0.0.1:8600"

# Bytes of UTF-8 in a token: 4 for English under the tokenizers in use today, fewer elsewhere.
BYTES_PER_TOKEN = 4
# What a chat template adds around one message: its role and two marks.
TOKENS_PER_MESSAGE = 4


def _base_url() -> str:
    return os.environ.get("WEFTLINE_BASE_URL") or DEFAULT_BASE_URL


def _api_key() -> SecretStr:
    # The openai client insists on a key; a server on loopback reads none.
    return SecretStr(os.environ.get("WEFTLINE_API_KEY") or "none")


class ChatWeftline(BaseChatOpenAI):
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

    In a chain that runs as one graph in the server: `compile_chain(prompt | llm | parser)`.

    Errors are those of the openai client (`openai.APIStatusError` and its kin), so retries and
    fallbacks written for ChatOpenAI work unchanged.
    """

    model_name: str = Field(default="default", alias="model")
    """The model's name at the server; `default` is the first one served."""
    openai_api_base: str | None = Field(
        default_factory=_base_url, alias="base_url", validate_default=True
    )
    openai_api_key: SecretStr = Field(default_factory=_api_key, alias="api_key")
    stream_usage: bool | None = True

    @field_validator("openai_api_base")
    @classmethod
    def _with_v1(cls, url: str | None) -> str:
        url = (url or _base_url()).rstrip("/")
        return url if url.endswith("/v1") else f"{url}/v1"

    @property
    def server_url(self) -> str:
        """The server's address without the OpenAI prefix."""
        assert self.openai_api_base is not None, "the validator always sets it"
        return self.openai_api_base.removesuffix("/v1")

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
        return ["langchain_weftline", "chat_models"]

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = "weftline"
        return params

    def _create_chat_result(
        self, response: Any, generation_info: dict[str, Any] | None = None
    ) -> ChatResult:
        result = super()._create_chat_result(response, generation_info)
        for generation in result.generations:
            generation.message.response_metadata["model_provider"] = "weftline"
        return result

    def _convert_chunk_to_generation_chunk(
        self,
        chunk: dict[str, Any],
        default_chunk_class: type,
        base_generation_info: dict[str, Any] | None,
    ) -> ChatGenerationChunk | None:
        generation = super()._convert_chunk_to_generation_chunk(
            chunk, default_chunk_class, base_generation_info
        )
        if generation is not None:
            generation.message.response_metadata["model_provider"] = "weftline"
        return generation

    def get_token_ids(self, text: str) -> list[int]:
        """The ids given by `custom_get_token_ids`; the server's tokenizer stays in the server."""
        if self.custom_get_token_ids is None:
            raise NotImplementedError(
                "ChatWeftline has no tokenizer of its own: set custom_get_token_ids, "
                "or use get_num_tokens for an estimate"
            )
        return self.custom_get_token_ids(text)

    def get_num_tokens(self, text: str) -> int:
        """An estimate, one token for four bytes of UTF-8, unless `custom_get_token_ids` is set.

        It needs neither the network nor a tokenizer package; English text comes out within about a
        fifth of the true count.
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
        """An estimate: the texts by `get_num_tokens`, and four tokens a message for its frame."""
        texts = [self.get_num_tokens(str(message.text)) for message in messages]
        return sum(texts) + TOKENS_PER_MESSAGE * len(texts)
