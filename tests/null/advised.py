"""Programs with one fault that keeps prompts from sharing their KV cache, and sound programs.

A program is the bodies of its requests, made from the answers so far.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

Body = dict[str, Any]
Requests = Generator[tuple[str, Body], str, None]
"""A route and a body each; the answer's text comes back."""

RULES = " ".join(f"rule{number}" for number in range(200))
MORE = " ".join(f"more{number}" for number in range(100))
TURNS = 6


def tool(name: str, says: str = "") -> Body:
    """A tool whose description has 80 words."""
    words = " ".join(f"{name}{number}" for number in range(80))
    return {"type": "function", "function": {"name": name, "description": f"{says}{words}"}}


TOOLS = [tool("add"), tool("find"), tool("sum")]


def said(role: str, content: str) -> Body:
    """A message of a chat."""
    return {"role": role, "content": content}


def chat(messages: list[Body], **more: Any) -> tuple[str, Body]:
    """A request with the whole chat."""
    return "/v1/chat/completions", {"messages": list(messages), "max_tokens": 4, **more}


def filled(name: str, prompt: list[Any], **values: Any) -> tuple[str, Body]:
    """A submit of one template with its values; strings of the prompt that are names of values are
    inputs. A list is a message with its role first."""

    def segment(text: str) -> Body:
        return {"input": text} if text in values else {"text": text}

    messages = [{"role": role, "content": [*map(segment, texts)]} for role, *texts in prompt]
    answer = {"role": "assistant", "content": [{"output": "answer"}]}
    inputs = [{"name": n, "in_out": "in", "value": value} for n, value in values.items()]
    output = {"name": "answer", "in_out": "out", "semantic_var_id": "answer"}
    sampling = {"sampling": {"max_tokens": 4}}
    call = {
        "name": name,
        "prompt": [*messages, answer],
        "placeholders": [*inputs, {**output, **sampling}],
    }
    return "/v1/submit", {"calls": [call], "get": ["answer"], "close": True}


@dataclass(frozen=True)
class Advised:
    """A program with a fault, and the one sentence that the advisor says of it."""

    requests: Callable[[], Requests]
    says: str


def a_clock_in_a_template() -> Requests:
    for turn in range(TURNS):
        prompt = [["system", "It is ", "now", ". Be brief. ", "rules"], ["user", "question"]]
        yield filled("ask", prompt, now=f"12:0{turn}", rules=RULES, question=f"Why {turn}?")


def a_clock_in_a_text() -> Requests:
    for turn in range(TURNS):
        yield chat([said("system", f"It is 12:0{turn}. {RULES}"), said("user", f"Why {turn}?")])


def a_question_before_constant_text() -> Requests:
    for turn in range(TURNS):
        prompt = [["user", "Question: ", "question", f" Rules: {RULES}"]]
        yield filled("ask", prompt, question=f"Why {turn}?")


def two_names_before_the_rules() -> Requests:
    for turn in range(TURNS):
        prompt = [["system", "For ", "user", " at ", "now", ": ", RULES], ["user", "question"]]
        values = {"user": f"Ada {turn}", "now": f"12:0{turn}", "question": f"Why {turn}?"}
        yield filled("greet", prompt, **values)


def tools_in_any_order() -> Requests:
    for turn in range(TURNS):
        tools = TOOLS[turn % 3 :] + TOOLS[: turn % 3]
        yield chat([said("system", RULES), said("user", f"Why {turn}?")], tools=tools)


def a_tool_that_comes_and_goes() -> Requests:
    for turn in range(TURNS):
        tools = TOOLS[turn % 2 :]
        yield chat([said("system", RULES), said("user", f"Why {turn}?")], tools=tools)


def a_tool_with_the_date() -> Requests:
    for turn in range(TURNS):
        tools = [TOOLS[0], tool("find", f"Today is day {turn}. "), TOOLS[2]]
        yield chat([said("system", RULES), said("user", f"Why {turn}?")], tools=tools)


def growing(change: Callable[[int, list[Body]], list[Body]]) -> Requests:
    """A chat whose messages `change` changes before each turn is sent."""
    messages = [said("system", "Be brief.")]
    for turn in range(TURNS):
        messages.append(said("user", f"Why {turn}? {MORE} {turn}"))
        answer = yield chat(change(turn, messages))
        messages.append(said("assistant", f"{answer} {turn}"))


def a_memory_block() -> Requests:
    def change(turn: int, messages: list[Body]) -> list[Body]:
        return [said("system", f"{RULES} Memory: {turn} facts."), *messages[1:]]

    yield from growing(change)


def a_rewritten_history() -> Requests:
    def change(turn: int, messages: list[Body]) -> list[Body]:
        return [messages[0], messages[1], said("assistant", f"(cut {turn})"), *messages[3:]]

    yield from growing(change)


def a_window_of_messages() -> Requests:
    yield from growing(lambda turn, messages: [messages[0], *messages[1:][-5:]])


def a_fact_before_the_history() -> Requests:
    facts: list[Body] = []

    def change(turn: int, messages: list[Body]) -> list[Body]:
        facts.insert(0, said("user", f"Fact {turn}."))
        return [messages[0], *facts, *messages[1:]]

    yield from growing(change)


def a_system_message_that_moves() -> Requests:
    def change(turn: int, messages: list[Body]) -> list[Body]:
        system = said("system", RULES)
        return [system, *messages[1:]] if turn % 2 else [*messages[1:], system]

    yield from growing(change)


def a_growing_chat() -> Requests:
    yield from growing(lambda turn, messages: messages)


def an_agent_with_tools() -> Requests:
    messages = [said("system", RULES), said("user", "Add all.")]
    for turn in range(TURNS):
        yield chat(messages, tools=TOOLS)
        called = {"name": "add", "arguments": f'{{"n": {turn}}}'}
        calls = [{"id": f"c{turn}", "type": "function", "function": called}]
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        messages.append({**said("tool", f"{turn} {MORE}"), "tool_call_id": f"c{turn}"})


def a_map_over_chunks() -> Requests:
    for turn in range(TURNS):
        chunk = f"Chunk {turn}: {MORE} {turn}"
        yield filled("map", [["system", RULES], ["user", "chunk", " In short:"]], chunk=chunk)


def rules_before_the_context() -> Requests:
    for turn in range(TURNS):
        prompt = [["system", RULES], ["user", "context", "\nQuestion: ", "question"]]
        found = f"Passage {turn}: {MORE} {turn}"
        yield filled("answer", prompt, context=found, question=f"Why {turn}?")


def a_clock_at_the_end() -> Requests:
    for turn in range(TURNS):
        prompt = [["system", "rules"], ["user", "question", " It is ", "now", "."]]
        values = {"rules": RULES, "question": f"Why {turn}?", "now": f"12:0{turn}"}
        yield filled("ask", prompt, **values)


def chats_of_several_users() -> Requests:
    chats = [[said("system", RULES), said("user", f"I am user {user}.")] for user in range(3)]
    for turn in range(2 * TURNS):
        messages = chats[turn % 3]
        answer = yield chat(messages)
        messages += [said("assistant", answer), said("user", f"Go on {turn}. {MORE} {turn}")]


def a_reminder_at_the_end() -> Requests:
    yield from growing(lambda turn, messages: [*messages, said("system", f"Remember: {RULES}")])


FAULTY = (
    Advised(
        a_clock_in_a_template,
        "system message, variable `now`, 209 tokens behind it are computed anew in 100 % of 5 "
        "calls: move it after `rules`",
    ),
    Advised(
        a_clock_in_a_text,
        "system message changes from character 10 on, 207 tokens behind it are computed anew in "
        "100 % of 5 calls: put what changes at the end of the prompt",
    ),
    Advised(
        a_question_before_constant_text,
        "user message, variable `question`, 205 tokens behind it are computed anew in 100 % of 5 "
        "calls: move it to the end of the prompt",
    ),
    Advised(
        two_names_before_the_rules,
        "system message, variables `user` and `now`, 208 tokens behind them are computed anew in "
        "100 % of 5 calls: move them to the end of the system message",
    ),
    Advised(
        tools_in_any_order,
        "tools: order changes, 514 tokens behind it are computed anew in 100 % of 5 calls: send "
        "the tools in one order",
    ),
    Advised(
        a_tool_that_comes_and_goes,
        "tools: `add` is in some lists only, 423 tokens behind it are computed anew in 100 % of 5 "
        "calls: send all tools each time, and limit them with tool_choice",
    ),
    Advised(
        a_tool_with_the_date,
        "tools: the description of `find` changes, 321 tokens behind it are computed anew in "
        "100 % of 5 calls: keep the tool's description and schema constant",
    ),
    Advised(
        a_memory_block,
        "system message changes from character 1,498 on, 315 tokens behind it are computed anew "
        "in 100 % of 5 calls: put what changes at the end of the prompt",
    ),
    Advised(
        a_rewritten_history,
        "history: message 3 was rewritten, 272 tokens behind it are computed anew in 80 % of 5 "
        "calls: leave earlier messages as they were, and append a new one",
    ),
    Advised(
        a_window_of_messages,
        "history: message 2 was dropped, 217 tokens behind it are computed anew in 60 % of 5 "
        "calls: drop many messages at once and seldom, or replace them by a summary",
    ),
    Advised(
        a_fact_before_the_history,
        "history: a message was inserted before message 2, 336 tokens behind it are computed anew "
        "in 100 % of 5 calls: append it",
    ),
    Advised(
        a_system_message_that_moves,
        "system message: its place changes, 532 tokens behind it are computed anew in 100 % of 5 "
        "calls: keep it at one place",
    ),
)
SOUND = (
    a_growing_chat,
    an_agent_with_tools,
    a_map_over_chunks,
    rules_before_the_context,
    a_clock_at_the_end,
    chats_of_several_users,
    a_reminder_at_the_end,
)
