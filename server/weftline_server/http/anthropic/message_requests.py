"""The body of POST /v1/messages, and how it becomes a chat request.

A field that is not here is ignored if it only advises, and refused if it would change the answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from weftline.contract.bodies import LooseBody
from weftline.contract.errors import InvalidRequest
from weftline.contract.parameters import CommonSampling, common
from weftline_server.http.anthropic.message_content import AnthropicMessage, TextBlock
from weftline_server.http.anthropic.message_tools import AnyTool, MessageChoice, offered
from weftline_server.http.openai.constraint_fields import JsonSchema, ResponseFormat
from weftline_server.http.openai.message_fields import check_messages
from weftline_server.http.openai.provenance import Provenance
from weftline_server.http.openai.requests import ChatMessage, ChatRequest
from weftline_server.http.openai.tool_types import Offer

# A line of accounting that some clients write before the system prompt: `x-NAME-header: KEY=VALUE;`
# with more such pairs. It changes from session to session, and with some versions of a client from
# request to request, so nothing behind it would be cached. It says nothing to a model.
_ACCOUNT = re.compile(r"x-[a-z-]{1,60}-header: (?:[\w.-]{1,64}=[^;\n]{0,256};? ?){1,16}\n*")

_ELSEWHERE = "is run by Anthropic and not here: leave it out"
REFUSED: Mapping[str, str] = {
    "container": _ELSEWHERE,
    "mcp_servers": f"{_ELSEWHERE}, or give the tools of the MCP server as tools",
    "previous_response_id": "messages continue none: send the whole conversation",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingConfig(LooseBody):
    """Whether the model thinks before it answers. How long it thinks is the model's own."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFormat(LooseBody):
    """The form of the text."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig(LooseBody):
    """How much the model thinks, and the form of the text."""

    effort: str | None = None
    format: OutputFormat | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetadata(LooseBody):
    """Who asks. Requests of one user are searched for the conversation that they continue."""

    user_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CountRequest(CommonSampling, LooseBody):
    """The body of POST /v1/messages/count_tokens, which takes all that a message takes."""

    model: str
    messages: tuple[AnthropicMessage, ...]
    system: str | tuple[TextBlock, ...] | None = None
    tools: tuple[AnyTool, ...] | None = None
    tool_choice: MessageChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None

    @property
    def is_kept(self) -> bool:
        """Whether the client advises to keep some part of the prompt: it will go on."""
        blocks = () if self.system is None or isinstance(self.system, str) else self.system
        marked = (*blocks, *(self.tools or ()))
        return any(getattr(one, "cache_control", None) is not None for one in marked) or any(
            message.is_kept for message in self.messages
        )

    def chat(self, offer: Offer, **more: Any) -> ChatRequest:
        """The same request of a chat, whose tools `offer` takes. What no model of this server would
        use is left out there.

        Raises InvalidRequest for what is not served.
        """
        messages = [*self._instructions(offer.left_out)]
        for index, message in enumerate(self.messages):
            messages += message.chat(f"messages.{index}")
        thinks = None if self.thinking is None else self.thinking.type != "disabled"
        effort = None if self.output_config is None else self.output_config.effort
        choice = self.tool_choice
        return ChatRequest(
            messages=tuple(messages),
            model=self.model,
            tools=offered(self.tools or (), offer) or None,
            tool_choice=None if choice is None else choice.of_chat(),
            parallel_tool_calls=None if choice is None else choice.parallel,
            reasoning_effort="none" if thinks is False else effort,
            chat_template_kwargs={"enable_thinking": True} if thinks else None,
            continue_final_message=messages[-1].role == "assistant" or None,
            response_format=self._format(),
            **more,
        )

    def _instructions(self, left_out: list[str]) -> list[ChatMessage]:
        """The system prompt without a line of accounting."""
        if not self.system:
            return []
        line = self.accounting
        if line:
            left_out.append(line.partition(":")[0])
        return [ChatMessage(role="system", content=self._guide[len(line) :])]

    @property
    def accounting(self) -> str:
        """The line of accounting before the system prompt, "" for none."""
        found = _ACCOUNT.match(self._guide)
        return "" if found is None else found[0]

    @property
    def _guide(self) -> str:
        blocks = self.system if isinstance(self.system, tuple) else ()
        return "\n\n".join(one.text for one in blocks) if blocks else str(self.system or "")

    def _format(self) -> ResponseFormat | None:
        asked = self.output_format
        if asked is None and self.output_config is not None:
            asked = self.output_config.format
        if asked is None:
            return None
        schema = JsonSchema(schema=asked.schema)
        try:
            return ResponseFormat(type="json_schema", json_schema=schema)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, param="output_config.format") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesRequest(CountRequest):
    """The body of POST /v1/messages."""

    max_tokens: int
    stop_sequences: tuple[str, ...] | None = None
    stream: bool = False
    metadata: RequestMetadata | None = None
    weftline: Provenance | None = None  # ours

    def answered(self, offer: Offer) -> ChatRequest:
        """The chat request with the fields that say how the answer is generated."""
        return self.chat(
            offer,
            max_completion_tokens=self.max_tokens,
            stop=self.stop_sequences or None,
            stream=self.stream,
            user=None if self.metadata is None else self.metadata.user_id,
            weftline=self.weftline,
            **common(self),
        )


def check_body(body: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for the first field that would change the answer and is not served."""
    for name, says in REFUSED.items():
        if body.get(name):
            raise InvalidRequest(f"{name} {says}", param=name)
    if not body.get("messages"):
        raise InvalidRequest("messages must not be empty", param="messages")
    check_messages(body.get("messages"), "messages")
