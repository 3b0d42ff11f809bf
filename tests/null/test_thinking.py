"""Thinking blocks over OpenAI's API: reasoning_content, and switches of the chat template."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.null.asgi import Serve
from tests.null.test_openai_tools import CALL, USER, WEATHER, chat, streamed
from weftline.contract.protocol import Call, InOut, Message, Placeholder, Sampling, Segment
from weftline_engine.api import Description
from weftline_engine.pretend import null
from weftline_engine.pretend.null import NullConfig, NullMode
from weftline_server.lowering.result_values import constraint_of
from weftline_server.prompt.answer import message_of
from weftline_server.prompt.answer_parser import AnswerParser
from weftline_server.prompt.prompter import Prompter
from weftline_server.prompt.thinking_block import Thinking, ThinkingBlock
from weftline_server.prompt.tool_blocks import CODE, BlockParser
from weftline_server.prompt.tool_format import ToolFormat, holds_beginning
from weftline_server.prompt.tool_parser import Argument, Said, Thought, ToolParser

# The end of a prompt as Qwen3 and SmolLM3 write it, where the block is empty if it is switched off,
# and as the thinking models of 2025 do, which begin it.
SWITCHED = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if tools %}tools\n"
    "{% endif %}assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)
OPENED = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n"
# Answers as these models write them.
QWEN3 = "<think>\nRome is in Italy.\n</think>\n\nIt is sunny."
QWEN3_CALL = f"<think>\nI need <tool_call> for that.\n</think>\n\n{CALL}"
R1 = "Rome is in Italy.\n</think>\n\nIt is sunny."
SAYS = NullConfig(
    mode=NullMode.SCRIPT,
    script=(("</think>", "It is sunny."), ("tools", QWEN3_CALL), ("", QWEN3)),
)


@pytest.mark.parametrize(
    ("thinking", "text", "thought", "said"),
    [
        (Thinking.MARKED, QWEN3, "Rome is in Italy.", "It is sunny."),
        (Thinking.MARKED, "<think>\n\n</think>\n\nHi", "", "Hi"),
        (Thinking.MARKED, " <think>a\n\nb</think>c ", "a\n\nb", "c "),
        (Thinking.MARKED, "<thinking>", "", "<thinking>"),
        (Thinking.MARKED, "<thi", "", "<thi"),
        (Thinking.MARKED, "Say <think>x</think>", "", "Say <think>x</think>"),
        (Thinking.MARKED, "<think>\nIt was cut of </thi", "It was cut of </thi", ""),
        (Thinking.MARKED, "", "", ""),
        (Thinking.OPEN, R1, "Rome is in Italy.", "It is sunny."),
        (Thinking.OPEN, QWEN3, "Rome is in Italy.", "It is sunny."),
        (Thinking.OPEN, "a < b", "a < b", ""),
        (Thinking.NONE, QWEN3, "", QWEN3),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_block_is_split_off(
    thinking: Thinking, text: str, thought: str, said: str, size: int
) -> None:
    """However the text is cut, the pieces add up to the same."""
    block = ThinkingBlock(thinking)
    pieces = [block.feed(text[at : at + size]) for at in range(0, len(text), size)]
    pieces.append(block.end())
    assert "".join(one for one, _ in pieces) == thought
    assert "".join(one for _, one in pieces) == said


def test_a_call_in_the_thoughts_is_no_call() -> None:
    """Only what follows the block is read for calls."""
    parser = AnswerParser(Thinking.MARKED, ToolParser(ToolFormat.HERMES, ("get_weather",), "k"))
    message = message_of(parser, QWEN3_CALL)
    assert message["reasoning_content"] == "I need <tool_call> for that."
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["get_weather"]
    assert message["content"] is None


async def test_a_chat_has_its_thoughts_apart(serve: Serve, monkeypatch: Any) -> None:
    """The answer is content and the block reasoning_content, whole and streamed, with a call and
    without tools."""
    monkeypatch.setattr(null, "CHAT_TEMPLATE", SWITCHED)
    server = await serve(SAYS)
    message = (await chat(server, USER))["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (
        "Rome is in Italy.",
        "It is sunny.",
    )
    deltas = [chunk["choices"][0]["delta"] for chunk in await streamed(server, USER)]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Rome is in Italy."
    assert "".join(delta.get("content", "") for delta in deltas) == "It is sunny."
    choice = (await chat(server, USER, tools=[WEATHER]))["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning_content"] == "I need <tool_call> for that."
    assert choice["message"]["content"] is None


@pytest.mark.parametrize(
    ("begun", "rest", "thought", "said"),
    [
        ("<think>\nRome", " is in Italy.</think>\nIt is sunny.", "is in Italy.", "It is sunny."),
        ("<think>\nI see.</think>\nIt is", " sunny. <think>", "", " sunny. <think>"),
        ("It is", " sunny.", "", " sunny."),
    ],
)
async def test_a_message_is_continued(
    begun: str, rest: str, thought: str, said: str, serve: Serve, monkeypatch: Any
) -> None:
    """The prompt ends with what the message has begun, and thoughts go on in it. The answer is what
    comes behind it, whole and streamed."""
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
    opens = "{% if add_generation_prompt %}[assistant]<think>{% endif %}"
    monkeypatch.setattr(null, "CHAT_TEMPLATE", template + opens)
    echoes = f"[user]Rome?[end][assistant]{begun}"
    script = ((echoes + "[end]", "The message was closed."), (echoes, rest))
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=script))
    messages = [{"role": "user", "content": "Rome?"}, {"role": "assistant", "content": begun}]
    asked = {"continue_final_message": True, "add_generation_prompt": False}
    message = (await chat(server, *messages, **asked))["choices"][0]["message"]
    assert (message.get("reasoning_content", ""), message["content"]) == (thought, said)
    deltas = [one["choices"][0]["delta"] for one in await streamed(server, *messages, **asked)]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == thought
    assert "".join(delta.get("content", "") for delta in deltas) == said


@pytest.mark.parametrize(
    ("last", "more", "param"),
    [
        ({"role": "user", "content": "It"}, {}, "continue_final_message"),
        ({"role": "assistant", "content": " "}, {}, "continue_final_message"),
        ({"role": "assistant", "content": "It"}, {"weftline": {"run_tools": True}},
         "continue_final_message"),
        ({"role": "assistant", "content": "It"}, {"add_generation_prompt": True},
         "add_generation_prompt"),
    ],
)  # fmt: skip
async def test_what_cannot_be_continued_is_refused(
    last: dict[str, Any], more: dict[str, Any], param: str, serve: Serve
) -> None:
    """One sentence names the field."""
    server = await serve()
    messages = [{"role": "user", "content": "Rome?"}, last]
    body = {"messages": messages, "continue_final_message": True, **more}
    answer = await server.http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_response_has_its_thoughts_as_an_item(serve: Serve, monkeypatch: Any) -> None:
    """An item of type reasoning stands before the message or the call, whole and as events, and is
    not in the prompt where it comes back before a later message of the user."""
    monkeypatch.setattr(null, "CHAT_TEMPLATE", SWITCHED)
    server = await serve(SAYS)
    made = (await server.http.post("/v1/responses", json={"input": "Rome?"})).json()
    thoughts, message = made["output"]
    assert (thoughts["type"], thoughts["summary"]) == ("reasoning", [])
    assert thoughts["content"] == [{"type": "reasoning_text", "text": "Rome is in Italy."}]
    assert (message["type"], message["content"][0]["text"]) == ("message", "It is sunny.")
    function: Any = WEATHER["function"]
    tool = {"type": "function", **function}
    items = [
        {"role": "user", "content": "Rome?"},
        *made["output"],
        {"role": "user", "content": "?"},
    ]
    body = {"input": items, "tools": [tool], "stream": True}
    text = (await server.http.post("/v1/responses", json=body)).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    first = next(at for at, one in enumerate(events) if one["type"].endswith("item.added"))
    kinds = [one["type"].removeprefix("response.") for one in events[first:]]
    assert list(dict.fromkeys(kinds)) == [
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done",
        "content_part.done", "output_item.done", "function_call_arguments.delta",
        "function_call_arguments.done", "completed",
    ]  # fmt: skip
    deltas = [one for one in events if one["type"] == "response.reasoning_text.delta"]
    assert "".join(one["delta"] for one in deltas) == "I need <tool_call> for that."
    assert {(one["output_index"], one["content_index"]) for one in deltas} == {(0, 0)}
    thoughts, call = events[-1]["response"]["output"]
    assert (thoughts["type"], call["type"], call["name"]) == (
        "reasoning", "function_call", "get_weather",
    )  # fmt: skip


async def test_enable_thinking_reaches_the_template(serve: Serve, monkeypatch: Any) -> None:
    """Switched off, the prompt holds an empty block, and the answer has no thoughts."""
    monkeypatch.setattr(null, "CHAT_TEMPLATE", SWITCHED)
    server = await serve(SAYS)
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    message = (await chat(server, USER, **off))["choices"][0]["message"]
    assert message["content"] == "It is sunny."
    assert "reasoning_content" not in message


async def test_a_template_may_begin_the_block(serve: Serve, monkeypatch: Any) -> None:
    """Then the answer begins with thoughts, without the mark."""
    monkeypatch.setattr(null, "CHAT_TEMPLATE", OPENED)
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=(("", R1),)))
    message = (await chat(server, USER))["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (
        "Rome is in Italy.",
        "It is sunny.",
    )


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        ({"tools": [WEATHER], "tool_choice": "required"}, CALL),
        (
            {
                "tools": [WEATHER],
                "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
            },
            CALL,
        ),
        ({"response_format": {"type": "json_object"}}, '{"sunny": true}'),
    ],
)
async def test_an_answer_that_is_held_to_a_form_does_not_think(
    wish: dict[str, Any], text: str, serve: Serve, monkeypatch: Any
) -> None:
    """The prompt opens a block, and the constraint allows no word in it: the answer is no
    thought."""
    monkeypatch.setattr(null, "CHAT_TEMPLATE", OPENED)
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=(("", text),)))
    message = (await chat(server, USER, **wish))["choices"][0]["message"]
    assert "reasoning_content" not in message
    if "tools" in wish:
        [made] = message["tool_calls"]
        assert made["function"] == {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    else:
        assert message["content"] == text


@pytest.mark.parametrize(
    ("wish", "held"),
    [
        (None, False),
        ({"regex": "a+"}, True),
        ({"structural_tag": {"format": {"type": "const_string", "value": "a"}}}, True),
        (
            {"structural_tag": {"structures": [{"begin": "<f>", "end": ""}], "triggers": ["<f"]}},
            False,
        ),
    ],
)
def test_a_constraint_with_triggers_leaves_room_for_thoughts(
    wish: dict[str, Any] | None, held: bool
) -> None:
    """The others hold from the first token."""
    assert holds_beginning(Call(name="ask", prompt="{{output:a}}", placeholders=()), wish) is held


@pytest.mark.parametrize("template", [OPENED, SWITCHED])
async def test_a_model_that_is_asked_to_think_answers_in_the_form_behind(
    template: str, serve: Serve, monkeypatch: Any
) -> None:
    """The constraint leaves the thoughts free. They were counted as the answer, or impossible."""
    monkeypatch.setattr(null, "CHAT_TEMPLATE", template)
    begin = "" if template == OPENED else "<think>\n"
    text = begin + 'Rome?\n</think>\n\n{"sunny":true}'
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=(("", text),)))
    wish = {"response_format": {"type": "json_object"}}
    asked = {"chat_template_kwargs": {"enable_thinking": True}}
    message = (await chat(server, USER, **wish, **asked))["choices"][0]["message"]
    assert message["reasoning_content"] == "Rome?"
    assert message["content"] == '{"sunny":true}'


@pytest.mark.parametrize(
    ("template", "words", "begin"),
    [
        (SWITCHED, {"enable_thinking": True}, "<think>"),
        (OPENED, {"thinking": True}, ""),
        (SWITCHED, {"enable_thinking": False}, None),
        (SWITCHED, {}, None),
    ],
)
def test_a_constraint_holds_behind_thoughts_that_are_asked_for(
    template: str, words: dict[str, Any], begin: str | None
) -> None:
    """Without the wish it holds from the first token."""
    user = Message(role="user", content=(Segment(text="Rome?"),))
    answer = Message(role="assistant", content=(Segment(output="a"),))
    sampling = Sampling(constraint={"regex": "[a-z]+"})
    output = Placeholder(name="a", in_out=InOut.OUT, sampling=sampling)
    call = Call(
        name="ask", prompt=(user, answer), placeholders=(output,), chat_template_kwargs=words
    )
    prompter = Prompter(Description(model="m", takes_messages=True, chat_template=template))
    made = json.loads(constraint_of(call, output, prompter) or "")
    if begin is None:
        assert made == {"regex": "[a-z]+"}
        return
    thoughts = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": "</think>"}
    assert made["structural_tag"]["elements"] == [
        thoughts,
        {"type": "regex", "pattern": "\\n{0,2}"},
        {"type": "regex", "pattern": "[a-z]+"},
    ]


async def test_a_prompt_of_text_has_no_template(serve: Serve, monkeypatch: Any) -> None:
    """So nothing asks the model to think, and its text is the answer."""
    monkeypatch.setattr(null, "CHAT_TEMPLATE", OPENED)
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=(("", R1),)))
    answer = await server.http.post("/v1/completions", json={"prompt": "Rome"})
    assert answer.json()["choices"][0]["text"] == R1


def test_code_in_the_thoughts_is_no_call() -> None:
    """A block of code that a model only thinks of is not run."""
    parser = AnswerParser(Thinking.MARKED, BlockParser(CODE, "k"))
    text = "Done.\n```python\nprint(1)\n```\n"
    deltas = parser.feed(f"<think>\n```python\nexit()\n```\n</think>\n\n{text}")
    assert [one.value for one in deltas if isinstance(one, Argument)] == ["print(1)\n"]
    assert "".join(one.text for one in deltas if isinstance(one, Said)) == text
    assert "".join(one.text for one in deltas if isinstance(one, Thought)) == (
        "```python\nexit()\n```"
    )


async def test_words_that_do_not_suit_a_template_are_refused(
    serve: Serve, monkeypatch: Any
) -> None:
    """Whatever error the template raises, the request is told."""
    monkeypatch.setattr(null, "CHAT_TEMPLATE", f"{SWITCHED}{{{{ 1 // (depth | default(1)) }}}}")
    server = await serve(SAYS)
    answer = await chat(server, USER, chat_template_kwargs={"depth": 0})
    assert answer["error"]["message"].startswith("the model's chat template refuses these messages")
    assert (await chat(server, USER))["choices"][0]["message"]["content"] == "It is sunny."


async def test_a_model_that_does_not_think_keeps_its_text(serve: Serve) -> None:
    """Its template has no such mark, so a block is text like any other."""
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=(("", QWEN3),)))
    message = (await chat(server, USER))["choices"][0]["message"]
    assert message["content"] == QWEN3
    assert "reasoning_content" not in message


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"messages": "x"}, "cannot set 'messages'"),
        ({"a b": 1}, "cannot set 'a b'"),
        ({f"w{i}": i for i in range(17)}, "at most 16 entries, and this has 17"),
        ({"tone": "x" * 1025}, "chat_template_kwargs.tone has more than 1024 characters"),
        ({"tone": ["x"]}, "chat_template_kwargs"),
    ],
)
async def test_odd_words_for_a_template_are_refused(
    words: dict[str, Any], says: str, serve: Serve
) -> None:
    """A template gets a few short values, and none under the names of its own variables."""
    server = await serve(SAYS)
    error = (await chat(server, USER, chat_template_kwargs=words))["error"]
    assert says in error["message"]
    assert error["param"].startswith("chat_template_kwargs")
