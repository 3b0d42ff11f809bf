"""What the fields of Anthropic's requests mean; see `fields`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from weftline_server.lowering.step import Field

_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
_TOOL = {"name": "get_weather", "input_schema": _SCHEMA}
_KEEP = {"type": "ephemeral"}

_OF_BOTH = {
    "messages": Field("The conversation so far.",
                                   [{"role": "user", "content": "Name a river."}]),
    "output_config": Field("How much the model thinks, and the form of the text.",
                                        {"effort": "low"}),
    "output_format": Field("An earlier name of output_config.format.", None),
    "system": Field("The system prompt: a text, or blocks of text.", "Be brief."),
    "thinking": Field("Whether the model thinks. Without it that is the template's "
                                   "choice.", {"type": "disabled"}),
    "tools": Field("Tools of the client. Those that Anthropic runs are left out.",
                                [_TOOL]),
    "tool_choice": Field("auto, any, none, or one tool.", {"type": "auto"}),
}  # fmt: skip

ANTHROPIC: Mapping[str, Field] = MappingProxyType({
    **{f"{kind}.{name}": said for name, said in _OF_BOTH.items()
       for kind in ("CountRequest", "MessagesRequest")},
    "AnthropicMessage.content": Field("A text, or blocks: text, document, tool_use, tool_result, "
                                      "thinking.", "Name a river."),
    "AnthropicMessage.role": Field("user, assistant or system.", "user"),
    "CacheControl.ttl": Field("Taken, and not used.", "5m"),
    "CacheControl.type": Field("Always ephemeral.", "ephemeral"),
    "cache_control": Field("Advice that the prompt up to here is sent again, so that the request "
                           "begins a conversation.", _KEEP),
    "DocumentBlock.context": Field("What the document is about.", None),
    "DocumentBlock.source": Field("The document, which is a text.",
                                  {"type": "text", "data": "The Rhine rises in the Alps."}),
    "DocumentBlock.title": Field("The title of the document.", "Rivers"),
    "DocumentBlock.type": Field("Always document.", "document"),
    "DocumentSource.data": Field("The text.", "The Rhine rises in the Alps."),
    "DocumentSource.type": Field("text, the only type.", "text"),
    "HiddenThoughts.type": Field("Always redacted_thinking.", "redacted_thinking"),
    "MessageChoice.disable_parallel_tool_use": Field("At most one call.", True),
    "MessageChoice.name": Field("The tool, for type tool.", "get_weather"),
    "MessageChoice.type": Field("auto, any, tool or none.", "auto"),
    "MessagesRequest.max_tokens": Field("The most tokens of the answer.", 64),
    "MessagesRequest.metadata": Field("Who asks.", {"user_id": "ada"}),
    "MessagesRequest.stop_sequences": Field("Texts that end the answer.", ["END"]),
    "MessagesRequest.weftline": Field("The request's session.", {"name": "draft"}),
    "OfferedTool.input_schema": Field("A JSON schema of the input.", _SCHEMA),
    "OfferedTool.name": Field("The name by which the model calls it.", "get_weather"),
    "OfferedTool.type": Field("custom, or left out.", "custom"),
    "OtherBlock.type": Field("Any other type; it is refused.", "image"),
    "OutputConfig.effort": Field("The effort, as in chats.", "low"),
    "OutputConfig.format": Field("The form of the text.",
                                 {"type": "json_schema", "schema": _SCHEMA}),
    "OutputFormat.schema": Field("The schema.", _SCHEMA),
    "OutputFormat.type": Field("Always json_schema.", "json_schema"),
    "RequestMetadata.user_id": Field("Requests of one user are searched for the conversation that "
                                     "they continue.", "ada"),
    "TextBlock.text": Field("The text.", "Name a river."),
    "TextBlock.type": Field("Always text.", "text"),
    "SignedThoughts.signature": Field("Any; it is not read.", "weftline"),
    "SignedThoughts.thinking": Field("The thoughts.", "Rivers are many."),
    "SignedThoughts.type": Field("Always thinking.", "thinking"),
    "ThinkingConfig.budget_tokens": Field("Taken, and not used.", 1024),
    "ThinkingConfig.type": Field("enabled, adaptive or disabled.", "disabled"),
    "ToolResultBlock.content": Field("A text, or blocks of text.", "18 degrees"),
    "ToolResultBlock.is_error": Field("Taken, and not used: the content says it.", False),
    "ToolResultBlock.tool_use_id": Field("The call that this is the result of.", "call_1"),
    "ToolResultBlock.type": Field("Always tool_result.", "tool_result"),
    "ToolUseBlock.id": Field("The id that the tool's result names.", "call_1"),
    "ToolUseBlock.input": Field("The arguments.", {"city": "Rome"}),
    "ToolUseBlock.name": Field("The tool that was called.", "get_weather"),
    "ToolUseBlock.type": Field("Always tool_use.", "tool_use"),
})  # fmt: skip
