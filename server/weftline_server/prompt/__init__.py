"""Renders prompts, tokenises them, and reads and writes each model's tool-call format.

No module here imports Jinja or tokenizers before it renders or tokenises.
"""

from __future__ import annotations

from weftline_server.prompt.answer import message_of
from weftline_server.prompt.answer_parser import AnswerParser, parser_of
from weftline_server.prompt.prompter import Payload, Prompter
from weftline_server.prompt.render import PromptBefore, RenderedMessage, render
from weftline_server.prompt.tool_format import ToolFormat
from weftline_server.prompt.tool_parser import ToolParser

__all__ = [
    "AnswerParser",
    "Payload",
    "PromptBefore",
    "Prompter",
    "RenderedMessage",
    "ToolFormat",
    "ToolParser",
    "message_of",
    "parser_of",
    "render",
]
