"""The families of docs/tools.md: how their templates and their texts call tools and think."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from weftline.contract.errors import InvalidRequest
from weftline.contract.tools import CalledFunction, Function, Tool, ToolCall
from weftline_engine.api import Description
from weftline_server.prompt.answer import message_of
from weftline_server.prompt.answer_parser import AnswerParser
from weftline_server.prompt.prompter import Prompter
from weftline_server.prompt.render import PromptBefore, RenderedMessage
from weftline_server.prompt.thinking_block import Thinking
from weftline_server.prompt.tool_format import ToolFormat
from weftline_server.prompt.tool_parser import ToolParser

PAGE = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()
ROWS = re.findall(r"^\| (\w[^|]*) \| (yes|no: in words) \|", PAGE, re.M)

# What the templates of the families have in common with the publishers': the variables that they
# read, the marks that they name, and how a prompt ends.
_HEAD = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
_TOOLS = "{% if tools %}{{ tools | tojson }} {mark}{% endif %}"
_JSON = _HEAD + _TOOLS.replace("{mark}", "<tool_call></tool_call>")
_OFF = "enable_thinking is defined and enable_thinking is false"
_SWITCH = f"{{% if {_OFF} %}}<think>\n\n</think>{{% endif %}}"
_SMOLLM3 = "{% generation %}{% endgeneration %}{% if xml_tools %}{{ xml_tools }}{% endif %}"
_LLAMA = _HEAD + _TOOLS.replace("{mark}", '{"name": function, "parameters": dictionary}')
CALL = '{"name": "weather", "arguments": {"city": "Rome"}}'
HERMES = f"I look.\n<tool_call>\n{CALL}\n</tool_call>"
THOUGHT = f"<think>\nThe user asks.\n</think>\n\n{HERMES}"
_PARAMETER = "<parameter=city>\nRome\n</parameter>"
XML = f"I look.\n<tool_call>\n<function=weather>\n{_PARAMETER}\n</function>\n</tool_call>"
_ARGUMENT = "<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>"
GLM = f"<think>\nThe user asks.\n</think>\nI look.\n<tool_call>weather\n{_ARGUMENT}\n</tool_call>"
# By the row of the page: template, format, thinking, and an answer with a call.
DIALECTS: dict[str, tuple[str, ToolFormat, Thinking, str]] = {
    "Qwen2.5, Granite 4": (_JSON, ToolFormat.HERMES, Thinking.NONE, HERMES),
    "Qwen3": (_JSON + _SWITCH, ToolFormat.HERMES, Thinking.MARKED, THOUGHT),
    "SmolLM3": (_HEAD + _SMOLLM3 + _SWITCH, ToolFormat.HERMES, Thinking.MARKED, THOUGHT),
    "Qwen3-Coder": (_JSON, ToolFormat.HERMES, Thinking.NONE, XML),
    "GLM 4.5, 4.6": (_JSON + _SWITCH, ToolFormat.HERMES, Thinking.MARKED, GLM),
    "GLM 4.7": (
        f"{_JSON}assistant\n<think>",
        ToolFormat.HERMES,
        Thinking.OPEN,
        GLM.removeprefix("<think>\n").replace("\n<", "<"),
    ),
    "Qwen3-Thinking, DeepSeek-R1": (
        f"{_JSON}assistant\n<think>\n",
        ToolFormat.HERMES,
        Thinking.OPEN,
        f"The user asks.\n</think>\n\n{HERMES}",
    ),
    "Llama 3.1, 3.2": (
        _LLAMA,
        ToolFormat.LLAMA,
        Thinking.NONE,
        '{"name": "weather", "parameters": {"city": "Rome"}}',
    ),
    "Mistral": (
        _HEAD + _TOOLS.replace("{mark}", "[TOOL_CALLS]"),
        ToolFormat.MISTRAL,
        Thinking.NONE,
        f"[TOOL_CALLS] [{CALL}]",
    ),
    "Mistral Small 3.2, Ministral 3, Devstral": (
        _HEAD + _TOOLS.replace("{mark}", "[TOOL_CALLS]name[ARGS]"),
        ToolFormat.MISTRAL_NAMED,
        Thinking.NONE,
        '[TOOL_CALLS]weather[ARGS]{"city": "Rome"}',
    ),
    "Granite 3": (
        _HEAD + _TOOLS.replace("{mark}", "<|tool_call|>"),
        ToolFormat.GRANITE,
        Thinking.NONE,
        '<|tool_call|>[{"arguments": {"city": "Rome"}, "name": "weather"}]',
    ),
    "gpt-oss": (
        _HEAD + _TOOLS.replace("{mark}", "") + "<|channel|>",
        ToolFormat.HERMES,
        Thinking.MARKED,
        "<|channel|>analysis<|message|>The user asks.<|end|><|start|>assistant<|channel|>commentary"
        ' to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}<|call|>',
    ),
    "Gemma 4": (
        _HEAD + _TOOLS.replace("{mark}", "<|tool_call>"),
        ToolFormat.HERMES,
        Thinking.MARKED,
        "<|channel>thought\nThe user asks.\n<channel|>"
        '<|tool_call>call:weather{city:<|"|>Rome<|"|>}<tool_call|>',
    ),
    "Kimi K2": (
        _HEAD + _TOOLS.replace("{mark}", "<|tool_call_argument_begin|>"),
        ToolFormat.HERMES,
        Thinking.NONE,
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
        '<|tool_call_argument_begin|>{"city": "Rome"}<|tool_call_end|><|tool_calls_section_end|>',
    ),
    "DeepSeek V3.2, V4": (
        _HEAD + _TOOLS.replace("{mark}", "｜DSML｜") + _SWITCH,
        ToolFormat.HERMES,
        Thinking.MARKED,
        "<think>The user asks.</think>\n\n<｜DSML｜tool_calls>\n"
        '<｜DSML｜invoke name="weather">\n'
        '<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    ),
    "DeepSeek V3, V3.1": (
        _HEAD + "<｜tool▁sep｜>{% if thinking %}<think>{% endif %}",
        ToolFormat.HERMES,
        Thinking.MARKED,
        "<think>The user asks.</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather"
        '<｜tool▁sep｜>{"city": "Rome"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    ),
    "MiniMax M2": (
        _HEAD + _TOOLS.replace("{mark}", "<minimax:tool_call>") + "assistant\n<think>\n",
        ToolFormat.HERMES,
        Thinking.OPEN,
        "The user asks.\n</think>\n\n<minimax:tool_call>\n"
        '<invoke name="weather">\n<parameter name="city">Rome</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
    ),
    "Seed-OSS": (
        _HEAD + _TOOLS.replace("{mark}", "<seed:tool_call>"),
        ToolFormat.HERMES,
        Thinking.MARKED,
        "<seed:think>The user asks.</seed:think>\n<seed:tool_call>\n<function=weather>\n"
        "<parameter=city>Rome</parameter>\n</function>\n</seed:tool_call>",
    ),
    "Command R7B": (
        _HEAD + _TOOLS.replace("{mark}", '<|START_ACTION|>[{"parameters": {}}]'),
        ToolFormat.HERMES,
        Thinking.MARKED,
        "<|START_THINKING|>The user asks.<|END_THINKING|><|START_ACTION|>[\n"
        '    {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Rome"}}\n'
        "]<|END_ACTION|>",
    ),
    "MiniCPM5": (
        _HEAD + _TOOLS.replace("{mark}", '<function name="f"><param name="k">') + _SWITCH,
        ToolFormat.HERMES,
        Thinking.MARKED,
        '<think>\nThe user asks.\n</think>\n\n<function name="weather">'
        '<param name="city">Rome</param></function>',
    ),
    "Apertus": (
        _HEAD + _TOOLS.replace("{mark}", "<|tools_prefix|>"),
        ToolFormat.HERMES,
        Thinking.MARKED,
        "<|inner_prefix|>The user asks.<|inner_suffix|>"
        '<|tools_prefix|>[{"weather": {"city": "Rome"}}]<|tools_suffix|>',
    ),
    "LFM2, LFM2.5": (
        _HEAD + "{% if tools %}List of tools: {{ tools | tojson }}{% endif %}{# </think> #}",
        ToolFormat.HERMES,
        Thinking.MARKED,
        "<think>The user asks.</think>\n<|tool_call_start|>[weather(city='Rome')]<|tool_call_end|>",
    ),
    "Nemotron Nano 2": (
        _HEAD + _TOOLS.replace("{mark}", "<TOOLCALL>") + "Assistant\n<think>\n\n",
        ToolFormat.HERMES,
        Thinking.OPEN,
        f"The user asks.\n</think>\n\n<TOOLCALL>[{CALL}]</TOOLCALL>",
    ),
    "Apriel, Hunyuan A13B, Jamba, MiniMax M1": (
        _HEAD + _TOOLS.replace("{mark}", "<tool_calls>"),
        ToolFormat.HERMES,
        Thinking.NONE,
        f"<tool_calls>[{CALL}]</tool_calls>",
    ),
    "Gemma 2 and 3, Phi-3, Phi-4-mini, OLMo 2, SmolLM2": (
        _HEAD,
        ToolFormat.HERMES,
        Thinking.NONE,
        HERMES,
    ),
}


def as_parsers_read(prompter: Prompter, text: str) -> str:
    """An answer of a model, in our own dialect where the model's family has another."""
    if prompter.dialect is None:
        return text
    rewriter = prompter.dialect.rewriter()
    return rewriter.feed(text) + rewriter.end()


def prompter_of(template: str) -> Prompter:
    """The prompter of a model with this template, whose engine tokenises itself."""
    return Prompter(Description(model="m", tokenizer=None, chat_template=template))


def test_every_row_of_the_page_is_tested() -> None:
    """No family is listed that has no texts here."""
    assert [name for name, _ in ROWS] == list(DIALECTS)


@pytest.mark.parametrize("name", DIALECTS)
def test_a_family_is_read_in_its_own_dialect(name: str) -> None:
    """The template tells the format of calls and how the model thinks. The call is found, and the
    prompt names the tool, by the template or in words."""
    template, format, thinking, text = DIALECTS[name]
    prompter = prompter_of(template)
    assert (prompter.tool_format, prompter.thinking({})) == (format, thinking)
    parser = AnswerParser(thinking, ToolParser(format, ("weather",), "k"))
    message = message_of(parser, as_parsers_read(prompter, text))
    [call] = message["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert (call["function"]["name"], arguments) == ("weather", {"city": "Rome"})
    assert message.get("reasoning_content") == (
        None if thinking is Thinking.NONE else "The user asks."
    )
    tools = (Tool(function=Function(name="weather", description="The weather.", parameters={})),)
    prompt = prompter.text(PromptBefore("", (RenderedMessage("user", "Is it warm?"),), tools))
    assert '"name": "weather"' in prompt
    in_words = dict(ROWS)[name] != "yes"
    assert ("You can call functions" in prompt) == in_words


def test_a_template_that_refuses_a_system_message_gets_it_in_the_users() -> None:
    """Gemma 2's does. So its tools, which are told in words, are told to it as well."""
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    prompter = prompter_of(refuses + _HEAD)
    tools = (Tool(function=Function(name="weather", description="The weather.", parameters={})),)
    turns = RenderedMessage("system", "Be brief."), RenderedMessage("user", "Is it warm?")
    assert prompter.text(PromptBefore("", turns)) == "user: Be brief.\n\nIs it warm?\n"
    for some in (turns, turns[1:]):
        prompt = prompter.text(PromptBefore("", some, tools))
        assert prompt.startswith("user: ") and prompt.endswith("Is it warm?\n")
        assert "You can call functions" in prompt


@pytest.mark.parametrize(
    ("needs", "written"),
    [("f.description + '!'", "clock:!"), ("f.parameters.properties | length", "clock:0"),
     ("f.description is defined", "clock:False"),
     ("raise_exception('no tools')", None)],
)  # fmt: skip
def test_a_template_that_needs_all_of_a_tool_gets_empty_parts(
    needs: str, written: str | None
) -> None:
    """Others get what the client has sent, and one that refuses any tool says so."""
    loop = "{% for t in tools or [] %}{% set f = t.function %}{{ f.name }}:{{ NEEDS }}{% endfor %}"
    prompter = prompter_of(loop.replace("NEEDS", needs) + _HEAD)
    prompt = PromptBefore(
        "",
        (RenderedMessage("user", "How late is it?"),),
        (Tool(function=Function(name="clock", parameters={"type": "object"})),),
    )
    if written is None:
        with pytest.raises(InvalidRequest, match="refuses these messages: no tools"):
            prompter.text(prompt)
    else:
        assert prompter.text(prompt) == f"{written}user: How late is it?\n"


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("LFM2, LFM2.5", '<|tool_call_start|>[weather(city="Rome")]<|tool_call_end|>'),
        ("Granite 3", '<|tool_call|>[{"name": "weather", "arguments": {"city": "Rome"}}]'),
        ("Qwen2.5, Granite 4", f"<tool_call>\n{CALL}\n</tool_call>"),
    ],
)
def test_a_call_is_text_where_the_template_writes_none(name: str, written: str) -> None:
    """LFM2's and Granite 3's templates describe tools, and leave out the calls of earlier messages.
    A model that does not see its call does not know what the result answers."""
    function = CalledFunction(name="weather", arguments='{"city": "Rome"}')
    turns = (
        RenderedMessage("user", "Is it warm?"),
        RenderedMessage("assistant", "I look.", tool_calls=(ToolCall(id="a", function=function),)),
        RenderedMessage("tool", "18 degrees", tool_call_id="a"),
    )
    template = DIALECTS[name][0]
    text = prompter_of(template).text(PromptBefore("", turns))
    assert f"assistant: I look.{written}\ntool: 18 degrees\n" in text
    writes = template + "{% for m in messages %}{{ m.tool_calls }}{% endfor %}"
    assert written not in prompter_of(writes).text(PromptBefore("", turns))


def test_arguments_that_are_no_json_are_written_as_they_are() -> None:
    """A small model may have written them, and it sees what it wrote."""
    call = ToolCall(id="a", function=CalledFunction(name="weather", arguments='{"city": '))
    text = prompter_of(DIALECTS["LFM2, LFM2.5"][0]).text(
        PromptBefore("", (RenderedMessage("assistant", "", tool_calls=(call,)),))
    )
    assert '<|tool_call_start|>[weather({"city": )]<|tool_call_end|>' in text


@pytest.mark.parametrize(("words", "thinking"), [({}, "<think>"), ({"enable_thinking": False}, "")])
def test_a_switch_of_a_template_is_given(words: dict[str, Any], thinking: str) -> None:
    """Qwen3 writes an empty block where thinking is off."""
    template = DIALECTS["Qwen3"][0]
    text = prompter_of(template).text(
        PromptBefore("", (RenderedMessage("user", "hi"),), words=words)
    )
    assert text.endswith("</think>") == (not thinking)


@pytest.mark.parametrize(
    "template", ["{% if messages %}", "{{ messages | rot13 }}", "{" * 2 + "(" * 5000]
)
def test_a_template_that_is_no_jinja_is_refused_in_a_sentence(template: str) -> None:
    """A file may hold anything as its template. The server does not start, and says why."""
    with pytest.raises(InvalidRequest, match="the chat template of model m cannot be read: ") as no:
        prompter_of(template)
    assert "\n" not in str(no.value)


def test_a_model_without_a_template_refuses_chats_alone() -> None:
    """The sentence says what to send."""
    prompter = Prompter(Description(model="m", tokenizer=None, chat_template=None))
    with pytest.raises(InvalidRequest, match="model m has no chat template: send a text prompt"):
        prompter.text(PromptBefore("", (RenderedMessage("user", "Is it warm?"),)))
    assert prompter.text(PromptBefore("Is it warm?")) == "Is it warm?"
