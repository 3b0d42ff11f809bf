"""Chat templates as their publishers wrote them, which llama.cpp's sources have in them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.null.test_dialects import as_parsers_read, prompter_of
from tests.null.test_special_marks import tokenizer
from weftline.contract.tools import CalledFunction, Function, Tool, ToolCall
from weftline_engine.api import Description
from weftline_server.prompt.answer import message_of
from weftline_server.prompt.answer_parser import AnswerParser
from weftline_server.prompt.prompter import UNSTABLE_CHARS, Prompter
from weftline_server.prompt.render import PromptBefore, RenderedMessage
from weftline_server.prompt.thinking_block import Thinking
from weftline_server.prompt.tool_format import ToolFormat
from weftline_server.prompt.tool_parser import ToolParser
from weftline_server.runtime.early_fill import HOLE
from weftline_server.runtime.next_turn import AnsweredTurn, next_prompt

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
    "GLM-4.6": (
        ToolFormat.HERMES, Thinking.MARKED, True, "<|assistant|>\n<think></think>\nIt is",
    ),
    "GLM-4.7-Flash": (ToolFormat.HERMES, Thinking.OPEN, True, "<|assistant|></think>It is"),
    "ibm-granite-granite-3.3-2B-Instruct": (
        ToolFormat.GRANITE, Thinking.MARKED, True, "assistant<|end_of_role|>It is",
    ),
    "ibm-granite-granite-4.0": (
        ToolFormat.HERMES, Thinking.NONE, True, "assistant<|end_of_role|>It is",
    ),
    "ibm-granite-granite-4.1": (
        ToolFormat.HERMES, Thinking.NONE, True, "assistant<|end_of_role|>It is",
    ),
    "HuggingFaceTB-SmolLM3-3B": (
        ToolFormat.HERMES, Thinking.MARKED, False, "<|im_start|>assistant\nIt is",
    ),
    "Qwen3.5-4B": (ToolFormat.HERMES, Thinking.OPEN, True, "It is"),
    "meta-llama-Llama-3.1-8B-Instruct": (ToolFormat.LLAMA, Thinking.NONE, True, "It is"),
    "meta-llama-Llama-3.2-3B-Instruct": (ToolFormat.LLAMA, Thinking.NONE, True, "It is"),
    "mistralai-Mistral-Nemo-Instruct-2407": (
        ToolFormat.MISTRAL, Thinking.NONE, True, "Is it warm?[/INST]It is",
    ),
    "Mistral-Small-3.2-24B-Instruct-2506": (
        ToolFormat.MISTRAL_NAMED, Thinking.NONE, True, "Is it warm?[/INST]It is",
    ),
    "mistralai-Ministral-3-14B-Reasoning-2512": (
        ToolFormat.MISTRAL_NAMED, Thinking.NONE, True, "Is it warm?[/INST]It is",
    ),
    "unsloth-mistral-Devstral-Small-2507": (
        ToolFormat.MISTRAL_NAMED, Thinking.NONE, True, "Is it warm?[/INST]It is",
    ),
    "openai-gpt-oss-120b": (
        ToolFormat.HERMES, Thinking.MARKED, True, "assistant<|channel|>final<|message|>It is",
    ),
    "google-gemma-4-31B-it": (ToolFormat.HERMES, Thinking.MARKED, True, "<|turn>model\nIt is"),
    "moonshotai-Kimi-K2": (
        ToolFormat.HERMES, Thinking.NONE, True, "assistant<|im_middle|>It is",
    ),
    "deepseek-ai-DeepSeek-V3.2": (
        ToolFormat.HERMES, Thinking.MARKED, True, "<｜Assistant｜></think>It is",
    ),
    "deepseek-ai-DeepSeek-V4": (
        ToolFormat.HERMES, Thinking.MARKED, True, "<｜Assistant｜></think>It is",
    ),
    "MiniMax-M2": (ToolFormat.HERMES, Thinking.OPEN, True, "[e~[\n]~b]ai\nIt is"),
    "ByteDance-Seed-OSS": (
        ToolFormat.HERMES, Thinking.MARKED, True, "<seed:bos>assistant\nIt is",
    ),
    "deepseek-ai-DeepSeek-V3.1": (
        ToolFormat.HERMES, Thinking.MARKED, False, "<｜Assistant｜><think></think>It is",
    ),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": (
        ToolFormat.HERMES, Thinking.MARKED, True, "<|START_RESPONSE|>It is",
    ),
    "LFM2-8B-A1B": (ToolFormat.HERMES, Thinking.NONE, True, "<|im_start|>assistant\nIt is"),
    "LFM2.5-Instruct": (
        ToolFormat.HERMES, Thinking.MARKED, True, "<|im_start|>assistant\nIt is",
    ),
    "LFM2.5-8B-A1B": (
        ToolFormat.HERMES, Thinking.MARKED, True, "<|im_start|>assistant\nIt is",
    ),
    "NVIDIA-Nemotron-Nano-v2": (ToolFormat.HERMES, Thinking.OPEN, True, "<think>\nIt is"),
    "unsloth-Apriel-1.5": (ToolFormat.HERMES, Thinking.NONE, True, "<|assistant|>\nIt is"),
    "MiniMax-M1": (ToolFormat.HERMES, Thinking.NONE, True, "ai name=assistant\nIt is"),
    "Apertus-8B-Instruct": (ToolFormat.HERMES, Thinking.MARKED, True, "<|assistant_start|>It is"),
    "openbmb-MiniCPM5-1B": (
        ToolFormat.HERMES, Thinking.MARKED, True, "<|im_start|>assistant\nIt is",
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


SYSTEM, DEVELOPER = (
    RenderedMessage("system", "Be brief."),
    RenderedMessage("developer", "Say degrees."),
)
SAID, AGAIN = RenderedMessage("assistant", "It is."), RenderedMessage("user", "Still?")


@pytest.mark.parametrize("tools", [(), (TOOL,)], ids=["chat", "tools"])
@pytest.mark.parametrize("name", [*PUBLISHED, "google-gemma-2-2b-it"])
def test_a_guide_is_in_the_prompt_at_every_place(name: str, tools: tuple[Tool, ...]) -> None:
    """Most publishers' templates leave a developer's message out or refuse it, and many do so with
    a system message behind another. Here each text is in the prompt once."""
    prompter = prompter_of((TEMPLATES / f"{name}.jinja").read_text())
    for talk in (
        (DEVELOPER, USER),
        (SYSTEM, DEVELOPER, USER),
        (SYSTEM, USER, SAID, DEVELOPER, AGAIN),
        (USER, SAID, replace(DEVELOPER, role="system"), AGAIN),
        (SYSTEM, USER, SAID, AGAIN, DEVELOPER),
    ):
        prompt = prompter.text(PromptBefore("", talk, tools))
        assert [prompt.count(turn.content) for turn in talk] == [1] * len(talk)


CALL = ToolCall(
    id="123456789", function=CalledFunction(name="weather", arguments='{"city": "Rome"}')
)
MARKS = ("<tool_call>", "[TOOL_CALLS]", '{"name"')
# How a call begins in a family whose marks are no text of ours.
BEGINNINGS = (
    "<tool_call>",
    " to=functions.weather",
    "<|tool_call>",
    "<|tool_call",
    "<｜DSML｜",
    "<minimax:",
    "<seed:t",
    "<｜tool▁calls",
    "<|START_ACTION|>",
    "<TOOLCALL>",
    "<tool_calls>",
    "<|tools_prefix|>",
    "<function name=",
)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_text_beside_calls_is_in_the_prompt(name: str) -> None:
    """Llama's, Mistral's and Cohere's templates write the calls alone."""
    prompter = prompter_of((TEMPLATES / f"{name}.jinja").read_text())
    called = RenderedMessage("assistant", "I look it up.", tool_calls=(CALL,))
    talk = (USER, called, RenderedMessage("tool", "18 degrees", tool_call_id=CALL.id), SAID, AGAIN)
    for turns in (talk[:3], talk):
        prompt = prompter.text(PromptBefore("", turns, (TOOL,)))
        assert [prompt.count(turn.content) for turn in turns] == [1] * len(turns)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_text_of_a_call_is_the_publishers_own(name: str) -> None:
    """A template writes an assistant's call as its model was trained to write it. From that text we
    read the same call. Where a template writes none, we write it ourselves."""
    prompter = prompter_of((TEMPLATES / f"{name}.jinja").read_text())
    turns = (USER, RenderedMessage("assistant", "", tool_calls=(CALL,)))
    answer = RenderedMessage("tool", "18 degrees", tool_call_id="123456789")
    shown = prompter.text(PromptBefore("", (*turns, answer), (TOOL,)))
    text = shown.partition("Is it warm?")[2].partition("18 degrees")[0]
    marks = ("<|tool_call|>", *MARKS) if prompter.dialect is None else BEGINNINGS
    start = min(at for mark in marks if (at := text.find(mark)) >= 0)
    parser = AnswerParser(Thinking.NONE, ToolParser(prompter.tool_format, ("weather",), "k"))
    [call] = message_of(parser, as_parsers_read(prompter, text[start:]))["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert (call["function"]["name"], arguments) == ("weather", {"city": "Rome"})


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_tool_needs_no_description(name: str) -> None:
    """Nor properties. The templates of gpt-oss, Apertus and Seed-OSS refuse such a tool, and get an
    empty description and no properties. A template that takes it gets what the client has sent."""
    prompter = prompter_of((TEMPLATES / f"{name}.jinja").read_text())
    bare = Tool(function=Function(name="clock", parameters={"type": "object"}))
    assert "clock" in prompter.text(PromptBefore("", (USER,), (TOOL, bare)))
    refuse = ("openai-gpt-oss-120b", "Apertus-8B-Instruct", "ByteDance-Seed-OSS")
    assert prompter._completes_tools == (name in refuse)


# How a template writes the thoughts before a call. The other templates write none.
THOUGHTS = {
    "Qwen-Qwen3-0.6B": "<think>\nPLAN-7.\n</think>\n\n",
    "GLM-4.6": "<think>PLAN-7.</think>\n",
    "GLM-4.7-Flash": "<think>PLAN-7.</think>",
    "ibm-granite-granite-3.3-2B-Instruct": "<think>\nPLAN-7.\n</think>\n\n",
    "HuggingFaceTB-SmolLM3-3B": "<think>\nPLAN-7.\n</think>\n\n",
    "Qwen3.5-4B": "<think>\nPLAN-7.\n</think>\n\n",
    "mistralai-Ministral-3-14B-Reasoning-2512": "[THINK]PLAN-7.[/THINK]",
    "openai-gpt-oss-120b": "<|channel|>analysis<|message|>PLAN-7.<|end|>",
    "google-gemma-4-31B-it": "<|channel>thought\nPLAN-7.\n<channel|>",
    "deepseek-ai-DeepSeek-V3.2": "<think>PLAN-7.</think>\n\n",
    "deepseek-ai-DeepSeek-V4": "<think>PLAN-7.</think>\n\n",
    "MiniMax-M2": "<think>\nPLAN-7.\n</think>\n\n",
    "ByteDance-Seed-OSS": "<seed:think>PLAN-7.</seed:think>\n",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "<|START_THINKING|>PLAN-7.<|END_THINKING|>",
    "LFM2.5-Instruct": "<think>\nPLAN-7.\n</think>\n\n",
    "LFM2.5-8B-A1B": "<think>PLAN-7.</think>",
    "unsloth-Apriel-1.5": "<thinking>PLAN-7.</thinking>\n",
    "Apertus-8B-Instruct": "<|inner_prefix|>PLAN-7.<|inner_suffix|>",
    "openbmb-MiniCPM5-1B": "<think>\nPLAN-7.\n</think>\n\n",
}
# Those that keep the thoughts before the user's last message, where the request asks for it, and
# those that keep them always.
KEEP = frozenset(
    {
        "GLM-4.7-Flash",
        "ibm-granite-granite-3.3-2B-Instruct",
        "HuggingFaceTB-SmolLM3-3B",
        "LFM2.5-Instruct",
        "LFM2.5-8B-A1B",
        "Apertus-8B-Instruct",
    }
)
ALWAYS = frozenset(
    {
        "mistralai-Ministral-3-14B-Reasoning-2512",
        "deepseek-ai-DeepSeek-V4",  # with tools
        "ByteDance-Seed-OSS",
        "unsloth-Apriel-1.5",
    }
)
PLANNED = RenderedMessage("assistant", "", tool_calls=(CALL,), thoughts="PLAN-7.")


@pytest.mark.parametrize("name", PUBLISHED)
def test_thoughts_before_a_call_are_the_publishers_own(name: str) -> None:
    """While tools run, nearly all templates of models that think write them, each in its form, and
    only there. The templates of DeepSeek R1, V3.1 and Nemotron Nano 2 leave them out."""
    prompter = prompter_of((TEMPLATES / f"{name}.jinja").read_text())
    answer = RenderedMessage("tool", "18 degrees", tool_call_id=CALL.id)
    talk = (USER, replace(SAID, thoughts="OLD-6."), AGAIN, PLANNED, answer)
    words = {"enable_thinking": True, "thinking": True, "add_thoughts": True}
    text = prompter.text(PromptBefore("", talk, (TOOL,), words))
    kept = prompter.text(PromptBefore("", talk, (TOOL,), {**words, "preserve_thinking": True}))
    dropped = prompter.text(PromptBefore("", talk, (TOOL,), {**words, "preserve_thinking": False}))
    assert (THOUGHTS.get(name, "PLAN-7.") in text) == (name in THOUGHTS)
    assert text.count("PLAN-7.") == kept.count("PLAN-7.") == (name in THOUGHTS)
    assert kept.count("OLD-6.") == (name in KEEP | ALWAYS)
    assert dropped.count("OLD-6.") == (name in ALWAYS)
    plain = prompter.text(PromptBefore("", (USER, SAID, AGAIN), (TOOL,), words))
    assert "PLAN" not in plain and "18 degrees" in text


# What stands between a call and the next answer beside the result, in characters: the marks of a
# template, of which the longest are Command R7B's.
MARKS_AROUND = 130
MARK = re.compile(r"</?[^<>{}'\"\s=]+>|\[/?[A-Z_]+\]")  # a mark of a template, which is one token


@pytest.mark.parametrize("thoughts", ["", "PLAN-7."], ids=["plain", "thinks"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_next_turn_begins_as_it_was_foreseen(name: str, thoughts: str, tmp_path: Path) -> None:
    """What is computed while the client runs a tool is the beginning of the prompt that the client
    then sends. Behind it are the result, the marks around it, and UNSTABLE_CHARS at most."""
    template = (TEMPLATES / f"{name}.jinja").read_text()
    tokenizer(sorted(set(MARK.findall(template)))).save(str(path := tmp_path / "tokenizer.json"))
    told = Description(model="m", tokenizer=str(path), chat_template=template, context_limit=9999)
    prompter = Prompter(told)
    words = {"enable_thinking": True, "thinking": True, "add_thoughts": True}
    before = PromptBefore("", (USER,), (TOOL,), words)
    called = AnsweredTurn("", (CALL,), thoughts)
    known = prompter.stable_prefix(next_prompt(before, called), HOLE)
    turn = RenderedMessage("assistant", "", tool_calls=(CALL,), thoughts=thoughts)
    result = RenderedMessage("tool", "18 degrees", tool_call_id=CALL.id)
    sent = prompter.tokenised(replace(before, messages=(USER, turn, result))).tokens
    assert sent is not None and sent[: len(known)] == known
    assert prompter.tokenizer is not None
    decode = partial(prompter.tokenizer.decode, skip_special_tokens=False)
    computed = decode(list(sent[len(known) :]))
    assert len(computed) <= len("18 degrees") + UNSTABLE_CHARS + MARKS_AROUND
    text = decode(list(known))
    assert ("PLAN-7." in text) == (bool(thoughts) and name in THOUGHTS)


def test_gemma_2_gets_tools_and_system_messages_in_the_users() -> None:
    """Its template refuses a system message."""
    prompter = prompter_of((TEMPLATES / "google-gemma-2-2b-it.jinja").read_text())
    prompt = prompter.text(
        PromptBefore("", (RenderedMessage("system", "Be brief."), USER), (TOOL,))
    )
    assert prompt.startswith("<start_of_turn>user\nBe brief.") and "weather" in prompt
    assert prompt.endswith("Is it warm?<end_of_turn>\n<start_of_turn>model\n")
