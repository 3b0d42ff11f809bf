"""Weftline as a LlamaIndex LLM meets the requirements for every LLM, against a real server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from llama_index.core import PromptTemplate
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.llms import ChatMessage, ImageBlock, TextBlock
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.prompts import ChatPromptTemplate, RichPromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.weftline import Weftline
from pydantic import BaseModel

from tests.integrations.conftest import StartServer
from tests.integrations.recording import recorded
from weftline.errors import ConnectionFailed, InvalidRequest, UnknownModel


@pytest.fixture
def llm(echo_url: str) -> Weftline:
    return Weftline(base_url=f"{echo_url}/v1", temperature=0)


def test_base_classes() -> None:
    """The requirements of LlamaIndex's own tests for integrations."""
    names = [base.__name__ for base in Weftline.__mro__]
    assert BaseLLM.__name__ in names and FunctionCallingLLM.__name__ in names
    assert Weftline.class_name() == "Weftline"


def test_namespace_is_shared() -> None:
    """Other integrations import beside ours, because the folders above it are no
    packages of ours.
    """
    import llama_index.llms

    assert llama_index.llms.__file__ is None
    assert len(list(llama_index.llms.__path__)) >= 1


def test_answers(llm: Weftline) -> None:
    """The four ways to call, whole and streamed, give the text that the engine echoes."""
    said = "user: Hello.\nassistant: "
    messages = [ChatMessage(role="user", content="Hello.")]
    assert llm.chat(messages).message.content == said
    assert llm.complete("Hello.").text == said
    assert [part.message.content for part in llm.stream_chat(messages)][-1] == said
    assert "".join(part.delta or "" for part in llm.stream_complete("Hello.")) == said
    assert llm.predict(PromptTemplate("{a}o."), a="Hell") == said
    assert "".join(llm.stream(PromptTemplate("{a}o."), a="Hell")) == said


def test_a_message_of_several_texts(echo_url: str) -> None:
    """They stand one behind the other, as LlamaIndex's OpenAI sends them, and with their sources.
    A template of messages, such as that of an agent's structured answer, has a text for each line.
    """
    lines = RichPromptTemplate("{% chat role='user' %}\n<a>\n\t{{ x }}\n</a>\n{% endchat %}")
    texts = ChatMessage(role="user", blocks=[TextBlock(text="one "), TextBlock(text="text.")])
    with recorded(echo_url) as proxy:
        llm = Weftline(base_url=proxy.url)
        assert llm.chat([texts]).message.content == "user: one text.\nassistant: "
        llm.predict(lines, x="many words")
        llm.predict(ChatPromptTemplate([texts, ChatMessage("Of {x}.")]), x="many")
        _, rich, both = proxy.bodies("/v1/chat/completions")
    assert rich["messages"] == [{"role": "user", "content": "<a>\n\tmany words\n</a>"}]
    assert [m["content"] for m in both["messages"]] == ["one text.", "Of many."]
    of = [{"text": "Of "}, {"text": "many", "name": "x"}, {"text": "."}]
    assert both["weftline"]["messages"] == [None, of]


def test_async_answers(llm: Weftline) -> None:
    """The same with await, in one event loop after another."""
    said = "user: Hello.\nassistant: "
    messages = [ChatMessage(role="user", content="Hello.")]

    async def ask() -> list[Any]:
        chat = [part.delta async for part in await llm.astream_chat(messages)]
        text = [part.delta async for part in await llm.astream_complete("Hello.")]
        words = [part async for part in await llm.astream(PromptTemplate("{a}o."), a="Hell")]
        return [
            (await llm.achat(messages)).message.content,
            (await llm.acomplete("Hello.")).text,
            await llm.apredict(PromptTemplate("{a}o."), a="Hell"),
            *("".join(part or "" for part in parts) for parts in (chat, text, words)),
        ]

    assert asyncio.run(ask()) == [said] * 6
    assert asyncio.run(ask()) == [said] * 6


def test_text_model(echo_url: str) -> None:
    """With is_chat_model off, a prompt is sent unchanged, without a chat template."""
    llm = Weftline(base_url=echo_url, is_chat_model=False)
    assert llm.complete("Once upon").text == "Once upon"
    assert llm.predict(PromptTemplate("Once {a}"), a="more") == "Once more"
    assert [part.text for part in llm.stream_complete("Once upon")][-1] == "Once upon"


async def test_messages_for_a_text_model(echo_url: str) -> None:
    """They become one text by `messages_to_prompt`, as OpenAILike sends them. Tools need a chat."""
    said = [ChatMessage(role="system", content="Be brief."), ChatMessage("Hello.")]
    llm = Weftline(base_url=echo_url, is_chat_model=False)
    text = "system: Be brief.\nuser: Hello.\nassistant: "
    assert llm.chat(said).message.content == text
    assert [part.message.content for part in llm.stream_chat(said)][-1] == text
    assert (await llm.achat(said)).message.content == text
    parts = [part.delta or "" async for part in await llm.astream_chat(said)]
    assert "".join(parts) == text
    own = Weftline(
        base_url=echo_url, is_chat_model=False, messages_to_prompt=lambda all_: f"<{len(all_)}>"
    )
    assert own.chat(said).message.content == "<2>"
    assert SimpleChatEngine.from_defaults(llm=own).chat("Hi.").response == "<1>"
    with recorded(echo_url) as proxy:
        asking = Weftline(base_url=proxy.url, is_chat_model=False)
        asking.chat_with_tools([FunctionTool.from_defaults(repr)], user_msg="Hello.")
        assert len(proxy.bodies("/v1/chat/completions")) == 1


def test_metadata_comes_from_the_server(llm: Weftline) -> None:
    """Prompts are packed to the model's own window unless one is given."""
    assert llm.metadata.context_window == 1 << 20
    assert llm.metadata.num_output == 256 and llm.metadata.is_chat_model
    assert Weftline(base_url="http://127.0.0.1:9", context_window=99).metadata.context_window == 99


def test_round_trip(llm: Weftline) -> None:
    """to_dict and from_dict keep every setting but the key, which no dict may hold."""
    given = Weftline("small", base_url="http://h/v1", api_key="secret", stop=["x"], seed=3)
    kept = Weftline.from_dict(given.to_dict())
    assert kept.to_dict() == given.to_dict()
    assert (kept.model, kept.base_url, kept.stop, kept.seed) == ("small", "http://h", ["x"], 3)
    assert "secret" not in json.dumps(given.to_dict()) + repr(given)


def test_parameters_reach_the_server(echo_url: str) -> None:
    """Fields of the LLM and options of a call are in the request. An option takes precedence."""
    with recorded(echo_url) as proxy:
        llm = Weftline(base_url=proxy.url, temperature=0.5, seed=1, additional_kwargs={"top_k": 4})
        llm.complete("a", max_tokens=3)
        [body] = proxy.bodies("/v1/chat/completions")
    asked = {"model": "default", "temperature": 0.5, "max_tokens": 3, "seed": 1, "top_k": 4}
    assert {key: body[key] for key in asked} == asked


def test_usage_is_counted(echo_url: str) -> None:
    """LlamaIndex's token counter gets the server's counts, not an estimate of its own."""
    counter = TokenCountingHandler()
    llm = Weftline(base_url=echo_url, callback_manager=CallbackManager([counter]))
    llm.complete("one two three")
    # user: one two three assistant: and the space after it
    assert (counter.prompt_llm_token_count, counter.completion_llm_token_count) == (6, 6)
    list(llm.stream_complete("one two three"))
    assert (counter.prompt_llm_token_count, counter.completion_llm_token_count) == (12, 12)


class _Events(BaseEventHandler):
    seen: list[str]

    def handle(self, event: Any, **kwargs: Any) -> None:
        self.seen.append(type(event).__name__)


def test_events_are_those_of_other_llms(llm: Weftline) -> None:
    """Handlers get each step once, in the order of any other LLM."""
    handler = _Events(seen=[])
    root = get_dispatcher()
    root.add_event_handler(handler)
    try:
        llm.predict(PromptTemplate("{a}"), a="b")
        list(llm.stream_chat([ChatMessage(role="user", content="b")]))
    finally:
        root.event_handlers.remove(handler)
    progress = "LLMChatInProgressEvent"
    seen = [name for name in handler.seen if name != progress]
    assert seen == [
        "LLMPredictStartEvent",
        "LLMChatStartEvent",
        "LLMChatEndEvent",
        "LLMPredictEndEvent",
        "LLMChatStartEvent",
        "LLMChatEndEvent",
    ]
    assert progress in handler.seen


def test_templates_arrive_unrendered(echo_url: str) -> None:
    """A request names the argument behind each part of its prompt. The parts add up to
    the prompt.
    """
    prompt = ChatPromptTemplate(
        message_templates=[
            ChatMessage(role="system", content="Answer in {language}."),
            ChatMessage(role="user", content="{question} Again: {question}"),
        ]
    )
    with recorded(echo_url) as proxy:
        llm = Weftline(base_url=proxy.url)
        llm.predict(prompt.partial_format(language="Latin"), question="Where is Rome?")
        asyncio.run(llm.apredict(prompt, language="Latin", question="Where is Rome?"))
        list(llm.stream(prompt, language="Latin", question="Where is Rome?"))

        async def stream() -> list[str]:
            parts = await llm.astream(prompt, language="Latin", question="Where is Rome?")
            return [part async for part in parts]

        asyncio.run(stream())
        bodies = proxy.bodies("/v1/chat/completions")
    question = {"text": "Where is Rome?", "name": "question"}
    pieces = [
        [{"text": "Answer in "}, {"text": "Latin", "name": "language"}, {"text": "."}],
        [question, {"text": " Again: "}, question],
    ]
    assert [body["weftline"]["messages"] for body in bodies] == [pieces] * 4
    for body in bodies:
        texts = ["".join(piece["text"] for piece in message) for message in pieces]
        assert [message["content"] for message in body["messages"]] == texts


def test_an_answer_is_traced(start_script: StartServer) -> None:
    """A prompt that holds an earlier answer of its run has an edge. Other runs do not know the
    answer.
    """
    url = start_script([("first", "Rome lies on the Tiber."), ("", "Yes.")])
    dispatcher = get_dispatcher("tests")

    @dispatcher.span
    def run(llm: Weftline) -> None:
        answer = llm.predict(PromptTemplate("first {a}"), a="question")
        llm.predict(PromptTemplate("Is it so? {claim}"), claim=f"I hear: {answer}")

    with recorded(url) as proxy:
        llm = Weftline(base_url=proxy.url)
        run(llm)
        run(llm)
        said = [body["weftline"] for body in proxy.bodies("/v1/chat/completions")]
    assert said[0]["session_id"] == said[1]["session_id"] != said[2]["session_id"]
    assert [len(body.get("close", ())) for body in said] == [0, 0, 1, 0]
    traced = said[1]["messages"][0][-1]
    assert traced["text"] == "Rome lies on the Tiber." and traced["name"] == "claim"
    assert traced["from_var"] != said[3]["messages"][0][-1]["from_var"]


class Town(BaseModel):
    """A town."""

    name: str
    size: int


CALL = '<tool_call>\n{"name": "Town", "arguments": {"name": "Rome", "size": 3}}\n</tool_call>'


def test_tools(start_script: StartServer) -> None:
    """Tools are offered, chosen, read from the answer and called: whole, streamed and async."""
    with recorded(start_script([("Rome", CALL), ("", "None of them.")])) as proxy:
        llm = Weftline(base_url=proxy.url, temperature=0)
        tool = FunctionTool.from_defaults(lambda name, size: f"{name}: {size}", name="Town")
        response = llm.chat_with_tools([tool], user_msg="Rome?")
        [call] = llm.get_tool_calls_from_response(response)
        assert (call.tool_name, call.tool_kwargs) == ("Town", {"name": "Rome", "size": 3})
        assert llm.predict_and_call([tool], user_msg="Rome?").response == "Rome: 3"
        later = asyncio.run(llm.apredict_and_call([tool], user_msg="Rome?"))
        assert later.response == "Rome: 3"
        *_, last = llm.stream_chat_with_tools([tool], user_msg="Rome?")
        assert llm.get_tool_calls_from_response(last)[0].tool_kwargs == call.tool_kwargs
        history = [
            ChatMessage(role="user", content="Rome?"),
            response.message,
            ChatMessage("3", role="tool", additional_kwargs={"tool_call_id": call.tool_id}),
        ]
        assert llm.chat(history).message.content == CALL  # without offered tools it calls none
        bodies = proxy.bodies("/v1/chat/completions")
    assert [body.get("tool_choice") for body in bodies] == ["auto"] * 4 + [None]
    assert bodies[-1]["messages"][1]["tool_calls"][0]["function"]["name"] == "Town"
    with pytest.raises(ValueError, match="at least one tool call, but got 0 tool calls"):
        llm.get_tool_calls_from_response(response.model_copy(update={"message": history[0]}))


def test_structured_predict(start_script: StartServer) -> None:
    """The client builds the object. The server constrained the answer to its schema."""
    with recorded(start_script([("Rome", CALL)])) as proxy:
        llm = Weftline(base_url=proxy.url)
        prompt = PromptTemplate("What of {town}?")
        assert llm.structured_predict(Town, prompt, town="Rome in Latium") == Town(
            name="Rome", size=3
        )
        later = asyncio.run(llm.astructured_predict(Town, prompt, town="Rome in Latium"))
        assert later == Town(name="Rome", size=3)
        *_, last = llm.stream_structured_predict(Town, prompt, town="Rome in Latium")
        assert last == Town(name="Rome", size=3)
        bodies = proxy.bodies("/v1/chat/completions")
    assert bodies[0]["tool_choice"] == "required"
    assert bodies[0]["weftline"]["messages"][0][1] == {"text": "Rome in Latium", "name": "town"}


def test_bad_input(echo_url: str) -> None:
    """Each wrong input is one clear error at the place where it was made."""
    llm = Weftline(base_url=echo_url)
    with pytest.raises(UnknownModel, match="no model 'other' is served"):
        _ = Weftline("other", base_url=echo_url).metadata
    with pytest.raises(InvalidRequest, match="max_tokens must be at least 1"):
        llm.complete("a", max_tokens=0)
    with pytest.raises(InvalidRequest, match="a message holds a ImageBlock"):
        llm.chat([ChatMessage(role="user", blocks=[ImageBlock(image=b"x")])])
    with pytest.raises(ValueError):
        Weftline(max_tokens=0)
    # Without its argument a template keeps the variable, as with every LLM.
    assert "{missing}" in llm.predict(PromptTemplate("a {missing}"))
    assert "['a', 3]" in llm.predict(PromptTemplate("{x}"), x=["a", 3])


def test_server_away() -> None:
    """One sentence says what is wrong and what to do, also in streams and with await."""
    llm = Weftline(base_url="http://127.0.0.1:9", context_window=4096)
    with pytest.raises(
        ConnectionFailed, match=r"no weftline server answers at http://127\.0\.0\.1:9"
    ):
        llm.complete("a")
    with pytest.raises(ConnectionFailed):
        list(llm.stream_complete("a"))
    with pytest.raises(ConnectionFailed):
        asyncio.run(llm.acomplete("a"))
    with pytest.raises(ConnectionFailed):
        _ = Weftline(base_url="http://127.0.0.1:9").metadata


def test_cancelled_request_is_left(start_script: StartServer) -> None:
    """Cancelling a task that awaits an answer does not disturb the next request."""
    llm = Weftline(base_url=start_script([("", "Yes.")]))

    async def run() -> str:
        task = asyncio.create_task(llm.acomplete("a"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return (await llm.acomplete("b")).text

    assert asyncio.run(run()) == "Yes."
