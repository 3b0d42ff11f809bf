"""Chat templates as their publishers wrote them, which llama.cpp's sources have in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.null.test_dialects import prompter_of
from weftline.contract.tools import Function, Tool
from weftline_server.prompt.render import PromptBefore, RenderedMessage
from weftline_server.prompt.thinking_block import Thinking
from weftline_server.prompt.tool_format import ToolFormat

TEMPLATES = (
    Path(__file__).parents[2] / ".venv-llama" / "source" / "templates"
)  # `make install-llama` keeps them
TOOL = Tool(function=Function(name="weather", description="The weather.", parameters={}))
USER = RenderedMessage("user", "Is it warm?")

# By the file: format, thinking, whether the template describes tools, and the end of a prompt in
# which a message is continued.
PUBLISHED: dict[str, tuple[ToolFormat, Thinking, bool, str]] = {
    "Qwen-Qwen2.5-7B-Instruct": (
        ToolFormat.HERMES, Thinking.NONE, True, "<|im_start|>assistant\nIt is",
    ),
    "Qwen-Qwen3-0.6B": (
        ToolFormat.HERMES, Thinking.MARKED, True,
        "<|im_start|>assistant\n<think>\n\n</think>\n\nIt is",
    ),
    "Qwen3-Coder": (ToolFormat.HERMES, Thinking.NONE, True, "<|im_start|>assistant\nIt is"),
    "ibm-granite-granite-3.3-2B-Instruct": (
        ToolFormat.GRANITE, Thinking.MARKED, True, "assistant<|end_of_role|>It is",
    ),
    "ibm-granite-granite-4.0": (
        ToolFormat.HERMES, Thinking.NONE, True, "assistant<|end_of_role|>It is",
    ),
    "mistralai-Mistral-Nemo-Instruct-2407": (
        ToolFormat.MISTRAL, Thinking.NONE, True, "Is it warm?[/INST]It is",
    ),
    "microsoft-Phi-3.5-mini-instruct": (
        ToolFormat.HERMES, Thinking.NONE, False, "<|end|>\n<|assistant|>\nIt is",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_template_is_known(name: str) -> None:
    """The publisher's own template tells the format and how the model thinks, describes a tool, or
    gets it in words, and lets a message be continued."""
    format, thinking, tells, end = PUBLISHED[name]
    prompter = prompter_of((TEMPLATES / f"{name}.jinja").read_text())
    assert (prompter.tool_format, prompter.thinking({})) == (format, thinking)
    prompt = prompter.text(PromptBefore("", (USER,), (TOOL,)))
    assert "weather" in prompt and ("You can call functions" in prompt) != tells
    assert prompter.text(PromptBefore("", (USER,), begun="It is")).endswith(end)


def test_gemma_2_gets_tools_and_system_messages_in_the_users() -> None:
    """Its template refuses a system message."""
    prompter = prompter_of((TEMPLATES / "google-gemma-2-2b-it.jinja").read_text())
    prompt = prompter.text(
        PromptBefore("", (RenderedMessage("system", "Be brief."), USER), (TOOL,))
    )
    assert prompt.startswith("<start_of_turn>user\nBe brief.") and "weather" in prompt
    assert prompt.endswith("Is it warm?<end_of_turn>\n<start_of_turn>model\n")
