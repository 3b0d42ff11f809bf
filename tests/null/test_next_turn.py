"""While a client runs tools, the engine computes the beginning of the next prompt."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.null.asgi import Serve, Server
from tests.null.test_openai_tools import CALL, USER, WEATHER, chat
from tests.null.test_special_marks import TokenEngine, tokenizer
from tests.waits import until
from weftline.contract.errors import EngineFailed
from weftline_engine import api
from weftline_server.config import ServerConfig
from weftline_server.prompt.prompter import UNSTABLE_CHARS

# The template writes a call in another way than the model does, and thoughts in front of it.
TEMPLATE = (
    "{% if tools %}tools{% endif %}{% for m in messages %}|{{ m.role }}| "
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think> {% endif %}"
    "{{ m.content }}{% for c in m.tool_calls %}CALLS {{ c.function.name }} WITH "
    "{{ c.function.arguments.city }} AND ENDS {% endfor %}{% endfor %}|assistant| "
)
THOUGHTS = "I should look at the weather first."
WRITTEN = f"<think>\n{THOUGHTS}\n</think>\n\n{CALL}"
RESULT = "sunny and warm"


class Recorded(TokenEngine):
    """Keeps the ops that it gets, and the contexts that it is to free. Its tokens are bytes."""

    def __init__(
        self, path: Path, answer: str = WRITTEN, error: str = "", *, template: str = TEMPLATE
    ) -> None:
        super().__init__(path, template, answer, 16)
        self.ops: list[api.Op] = []
        self.freed: list[str] = []
        self.error = error

    def submit(self, op: api.Op) -> None:
        self.ops.append(op)
        if op.kind != api.Kind.FILL:
            super().submit(op)
        elif self.error:
            self._emit(api.Failed(**self._head(op), error=self.error, message="no"))
            self._send()
        else:
            usage = api.Usage(
                prompt_tokens=len(op.tokens or ()),
                cached_tokens=0,
                output_tokens=0,
                started=0.0,
                filled=0.0,
            )
            self._emit(api.Finished(**self._head(op), reason=api.FinishReason.FILLED, usage=usage))
            self._send()

    def free(self, context: str) -> None:
        self.freed.append(context)

    @property
    def fills(self) -> list[api.Op]:
        return [op for op in self.ops if op.kind == api.Kind.FILL]


async def ready(serve: Serve, engine: Recorded, *without: str) -> Server:
    config = ServerConfig(without=frozenset(without))
    return await serve(config=config, also={"marked": lambda: engine})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tokenizer(()).save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


async def turn(server: Server, session: str, *messages: Any, **more: Any) -> Any:
    body = {"model": "marked", "tools": [WEATHER], "session_id": session, **more}
    [choice] = (await chat(server, *messages, **body))["choices"]
    return choice["message"]


@pytest.mark.parametrize("thinks", [True, False])
async def test_the_next_prompt_begins_with_what_was_computed(
    thinks: bool, serve: Serve, path: Path
) -> None:
    """Up to the last UNSTABLE_CHARS before the tool's result, whatever the client keeps of the
    answer. The context is freed at its end, and stays in the cache."""
    engine = Recorded(path, WRITTEN if thinks else CALL)
    server = await ready(serve, engine)
    session = await server.session()
    made = await turn(server, session, USER)
    assert made.get("reasoning_content") == (THOUGHTS if thinks else None)
    await until(lambda: len(engine.freed) >= 1)
    [fill] = engine.fills
    assert engine.freed == [fill.context] == [f"{engine.ops[0].id}+next"]
    assert (fill.salt, fill.hints.application) == (engine.ops[0].salt, session)
    assert fill.hints.turn > engine.ops[0].hints.turn
    kept = {key: made[key] for key in ("role", "content", "tool_calls")}
    [call] = made["tool_calls"]
    await turn(server, session, USER, kept, {"role": "tool", "tool_call_id": call["id"],
                                             "content": RESULT})  # fmt: skip
    following = engine.ops[2].tokens
    assert fill.tokens and following and following[: len(fill.tokens)] == fill.tokens
    text = engine._tokenizer.decode(list(following))
    assert ("<think>" in text) is thinks
    computed = text[len(fill.tokens) :]
    longest = len("|assistant| ") + max(map(len, ("ENDS", "AND")))  # words are not cut
    assert computed.endswith(f"{RESULT}|assistant| ")
    assert len(computed) <= len(f"{RESULT}|assistant| ") + UNSTABLE_CHARS + longest


# Writes thoughts behind the user's last message alone, as most do.
DROPPING = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}|{{ m.role }}| "
    "{% if m.reasoning_content and loop.index0 > ns.last %}<think>{{ m.reasoning_content }}"
    "</think> {% endif %}{{ m.content }}{% endfor %}|assistant| "
)
LATER = {"role": "user", "content": "And how is the weather in Oslo today?"}


async def test_a_conversation_without_tools_is_computed_while_the_user_reads(
    serve: Serve, path: Path
) -> None:
    """From its second answer on, where the user's next message makes the template drop the
    thoughts: a first answer may be a step of a chain."""
    engine = Recorded(
        path, f"<think>\n{THOUGHTS}\n</think>\n\nIt is sunny and warm in Rome.", template=DROPPING
    )
    server = await ready(serve, engine)
    said = {"model": "marked", "session_id": await server.session()}
    first = (await chat(server, USER, **said))["choices"][0]["message"]
    assert first["reasoning_content"] == THOUGHTS
    second = (await chat(server, USER, first, LATER, **said))["choices"][0]["message"]
    await until(lambda: len(engine.freed) >= 1)
    [fill] = engine.fills
    assert fill.context == f"{engine.ops[1].id}+next"
    await chat(server, USER, first, LATER, second, USER, **said)
    following = engine.ops[3].tokens
    assert fill.tokens and following and following[: len(fill.tokens)] == fill.tokens
    computed = engine._tokenizer.decode(list(following[len(fill.tokens) :]))
    assert computed.endswith(f"|user| {USER['content']}|assistant| ")
    assert len(computed) <= len(f"|user| {USER['content']}|assistant| ") + UNSTABLE_CHARS


async def test_nothing_is_computed_in_vain(serve: Serve, path: Path) -> None:
    """Where no later prompt is expected, where an answer calls nothing, or without the switch."""
    engine = Recorded(path)
    server = await ready(serve, engine)
    body = {"model": "marked", "tools": [WEATHER], "weftline": {"name": "once"}}
    await chat(server, USER, **body)  # in a session of its own
    said = Recorded(path, "It is sunny.")
    plain = await ready(serve, said)
    await turn(plain, await plain.session(), USER)
    off = Recorded(path)
    without = await ready(serve, off, "prefill_early")
    await turn(without, await without.session(), USER)
    await asyncio.sleep(0.1)
    assert (len(engine.ops), len(said.ops), len(off.ops)) == (1, 1, 1)


async def test_a_fill_that_fails_harms_nothing(serve: Serve, path: Path) -> None:
    """The next turn is computed from its beginning."""
    engine = Recorded(path, error=EngineFailed.__name__)
    server = await ready(serve, engine)
    session = await server.session()
    made = await turn(server, session, USER)
    await until(lambda: len(engine.fills) == 1)
    [call] = made["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": RESULT}
    again = await turn(server, session, USER, made, result)
    assert again["tool_calls"] and engine.ops[2].kind == api.Kind.GENERATE
    [member] = [one for one in server.driver.dispatcher.members if one.name == "marked"]
    await until(lambda: len(engine.fills) == 2 and not member.fills)


COMPACTS: list[dict[str, Any]] = [
    {"role": "system", "content": [{"text": "You help."}]},
    {"role": "user", "content": [{"text": "So far: "}, {"input": "answer"}]},
    {"role": "assistant", "content": [{"text": "Go on, and tell me what the weather is like."}]},
    {"role": "user", "content": [{"input": "later"}]},
]


async def test_what_replaces_a_conversation_is_computed_behind_its_summary(
    serve: Serve, path: Path
) -> None:
    """With the tools of the summary's prompt, up to what the client does not know yet."""
    engine = Recorded(path, " They spoke of the weather. ")
    server = await ready(serve, engine)
    session = await server.session()
    said = {"session_id": session, "compacts_to": COMPACTS}
    body = {"model": "marked", "tools": [WEATHER], "weftline": said}
    await chat(server, USER, {"role": "user", "content": "Summarise."}, **body)
    await until(lambda: len(engine.freed) >= 1)
    [fill] = engine.fills
    whole = (
        "tools|system| You help.|user| So far: They spoke of the weather.|assistant| "
        "Go on, and tell me what the weather is like.|user| "
    )
    text = whole[: len(fill.tokens or ())]
    assert engine._tokenizer.decode(list(fill.tokens or ())) == text
    assert len(whole) - len(text) <= UNSTABLE_CHARS + len("weather ")


@pytest.mark.parametrize("answer", [CALL, "  "])
async def test_no_summary_replaces_nothing(answer: str, serve: Serve, path: Path) -> None:
    """A call of a tool in place of a summary, or no text."""
    engine = Recorded(path, answer)
    server = await ready(serve, engine)
    said = {"session_id": await server.session(), "compacts_to": COMPACTS}
    await chat(server, USER, model="marked", tools=[WEATHER], weftline=said)
    await asyncio.sleep(0.1)
    assert len(engine.ops) == 1


@pytest.mark.parametrize(
    "messages",
    [COMPACTS[:1], [*COMPACTS, {"role": "user", "content": [{"input": "other"}]}],
     COMPACTS * 2501],
)  # fmt: skip
async def test_messages_that_replace_no_conversation(
    messages: list[dict[str, Any]], serve: Serve, path: Path
) -> None:
    """Without the answer, with another input, or too many: a 400 that names the field."""
    server = await ready(serve, Recorded(path))
    body = {"model": "marked", "messages": [USER], "weftline": {"compacts_to": messages}}
    answer = await server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "compacts_to"
