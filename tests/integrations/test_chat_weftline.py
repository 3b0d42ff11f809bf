"""ChatWeftline against a real server, compared with LangChain's ChatOpenAI."""

from __future__ import annotations

import json
import sys
from typing import Any

import openai
import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.load import dumpd, load
from langchain_core.messages import AIMessageChunk, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.rate_limiters import BaseRateLimiter
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

from langchain_weftline import ChatWeftline, accelerate
from tests.integrations.conftest import StartServer
from tests.integrations.recording import recorded

QUESTION = [SystemMessage("Be brief."), HumanMessage("Which rivers?")]
ECHO = "system: Be brief.\nuser: Which rivers?\nassistant: "
ECHO_TOKENS = 8  # seven words, with the space at the end


@pytest.fixture(params=["weftline", "openai"])
def llm(request: pytest.FixtureRequest, echo_url: str) -> Any:
    """Our model, or LangChain's own on the same server."""
    if request.param == "weftline":
        return ChatWeftline(base_url=echo_url, temperature=0)
    return ChatOpenAI(
        base_url=f"{echo_url}/v1", api_key=SecretStr("none"), model="default", stream_usage=True
    )


@pytest.mark.parametrize(
    "given", ["http://there:1", "http://there:1/", "http://there:1/v1", "http://there:1/v1/"]
)
def test_base_url_with_and_without_v1(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users give either form. Both mean the same server, as an argument or from the environment."""
    assert ChatWeftline(base_url=given).openai_api_base == "http://there:1/v1"
    monkeypatch.setenv("WEFTLINE_BASE_URL", given)
    assert ChatWeftline().openai_api_base == "http://there:1/v1"
    assert ChatWeftline().server_url == "http://there:1"


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without settings it uses the server of this machine, its first model, and no key
    of OpenAI's.
    """
    monkeypatch.delenv("WEFTLINE_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "must not be sent to us")
    monkeypatch.setenv("OPENAI_API_BASE", "http://must.not.be.used")
    llm = ChatWeftline()
    assert llm.server_url == "http://127.0.0.1:8600"
    assert llm.model_name == "default"
    assert llm.openai_api_key.get_secret_value() == "none"
    assert llm._get_ls_params()["ls_provider"] == "weftline"


def test_the_profile_of_abilities() -> None:
    """Agents choose by the profile how to request an object. The user states the context window."""
    profile = ChatWeftline().profile or {}
    assert profile["tool_calling"] and profile["tool_choice"] and profile["structured_output"]
    assert not profile["image_inputs"] and "max_input_tokens" not in profile
    assert ChatWeftline(profile={"max_input_tokens": 8192}).profile == {"max_input_tokens": 8192}


@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")  # of `load`
def test_serialises_without_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A saved chain names the variable that holds the key, and loads with it."""
    monkeypatch.setenv("WEFTLINE_API_KEY", "a secret")
    llm = ChatWeftline(base_url="http://there:1", temperature=0.5)
    saved = dumpd(llm)
    assert "a secret" not in str(saved)
    loaded = load(
        saved,
        allowed_objects=[ChatWeftline],
        valid_namespaces=["langchain_weftline"],
        secrets_from_env=True,
    )
    assert dumpd(loaded) == saved
    assert loaded.openai_api_key.get_secret_value() == "a secret"


def test_counts_tokens_offline() -> None:
    """An estimate needs neither transformers nor a download. A counter of the user's is exact."""
    llm = ChatWeftline()
    before = "transformers" in sys.modules
    assert llm.get_num_tokens("twelve bytes") == 3
    assert llm.get_num_tokens("é" * 3) == 2
    assert llm.get_num_tokens_from_messages(QUESTION) == 3 + 4 + 4 + 4
    assert ("transformers" in sys.modules) == before
    assert ChatWeftline(custom_get_token_ids=lambda t: [0] * len(t)).get_num_tokens("abc") == 3
    with pytest.raises(NotImplementedError, match="custom_get_token_ids"):
        llm.get_token_ids("text")


def test_invoke(llm: Any) -> None:
    """The answer has its usage and the name of the model."""
    answer = llm.invoke(QUESTION)
    assert answer.content == ECHO
    usage = answer.usage_metadata
    assert usage["input_tokens"] == ECHO_TOKENS
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_token_details"]["cache_read"] == 0
    assert answer.response_metadata["model_name"] == "null"
    assert answer.response_metadata["finish_reason"] == "stop"


async def test_ainvoke(llm: Any) -> None:
    """The same with await."""
    assert (await llm.ainvoke(QUESTION)).content == ECHO


def test_stream(llm: Any) -> None:
    """Chunks add up to the answer, and the last one has the usage."""
    total = AIMessageChunk(content="")
    for chunk in llm.stream(QUESTION):
        total += chunk
    assert total.content == ECHO
    assert total.usage_metadata is not None
    assert total.usage_metadata["input_tokens"] == ECHO_TOKENS
    assert total.response_metadata["model_name"] == "null"


async def test_astream(llm: Any) -> None:
    """The same with async for."""
    assert "".join([chunk.content async for chunk in llm.astream(QUESTION)]) == ECHO


def which_river(name: str) -> str:
    """Look a river up."""
    return name


@pytest.mark.parametrize("streams", [{"streaming": True}, {"stream": True}], ids=str)
async def test_an_answer_that_is_not_to_be_streamed(
    streams: dict[str, bool], echo_url: str
) -> None:
    """`disable_streaming` holds for a model or a call that asks for streams, as LangChain's
    documentation says: always, or where tools are bound.
    """
    own = {name: wanted for name, wanted in streams.items() if name == "streaming"}
    asked = {name: wanted for name, wanted in streams.items() if name == "stream"}
    with recorded(echo_url) as passed:
        for disabled in ("tool_calling", True):
            llm = ChatWeftline(base_url=passed.url, disable_streaming=disabled, **own)
            with_tools = llm.bind_tools([which_river])
            for model in (with_tools, llm):
                assert model.invoke(QUESTION, **asked).text.startswith("system: ")
                assert (await model.ainvoke(QUESTION, **asked)).text.startswith("system: ")
            [whole] = with_tools.stream(QUESTION, **asked)
            assert whole.text.startswith("system: ")
        sent = [body["stream"] for body in passed.bodies("/v1/chat/completions")]
    assert sent == [False, False, True, True, False] + [False] * 5


async def test_batches_keep_their_order(llm: Any) -> None:
    """Answers are in the order of their questions."""
    prompts = [f"number {n}" for n in range(20)]
    expected = [f"user: {prompt}\nassistant: " for prompt in prompts]
    assert [answer.content for answer in llm.batch(prompts)] == expected
    assert [answer.content for answer in await llm.abatch(prompts)] == expected


def test_stop_and_max_tokens(llm: Any) -> None:
    """Generation ends before a stop string, and after the maximum number of tokens."""
    assert llm.invoke(QUESTION, stop=["rivers"]).content == "system: Be brief.\nuser: Which "
    short = llm.bind(max_tokens=2).invoke(QUESTION)
    assert short.content == "system: Be"
    assert short.response_metadata["finish_reason"] == "length"


def test_in_a_chain(llm: Any) -> None:
    """`prompt | llm | parser`, streamed, gives the same as with any model."""
    chain = ChatPromptTemplate.from_template("Which {what}?") | llm | StrOutputParser()
    assert chain.invoke({"what": "rivers"}) == "user: Which rivers?\nassistant: "
    assert "".join(chain.stream({"what": "lakes"})) == "user: Which lakes?\nassistant: "


class Limiter(BaseRateLimiter):
    """Counts the requests that ask for permission."""

    def __init__(self) -> None:
        self.asked = 0

    def acquire(self, *, blocking: bool = True) -> bool:
        self.asked += 1
        return True

    async def aacquire(self, *, blocking: bool = True) -> bool:
        return self.acquire(blocking=blocking)


async def test_a_cache_and_a_rate_limiter(echo_url: str) -> None:
    """A cached answer is free. Every other request has asked the limiter."""
    limiter = Limiter()
    with recorded(echo_url) as passed:
        llm = ChatWeftline(base_url=passed.url, cache=InMemoryCache(), rate_limiter=limiter)
        chain = ChatPromptTemplate.from_template("Which {what}?") | llm
        first = chain.invoke({"what": "rivers"})
        assert chain.invoke({"what": "rivers"}).content == first.content
        assert (await chain.ainvoke({"what": "rivers"})).content == first.content
        assert accelerate(chain).invoke({"what": "rivers"}).content == first.content
        assert (limiter.asked, len(passed.bodies("/v1/chat/completions"))) == (1, 1)
        await chain.ainvoke({"what": "lakes"})
        accelerate(chain).invoke({"what": "seas"})
        assert (limiter.asked, len(passed.bodies("/v1/chat/completions"))) == (3, 3)


def test_errors_are_those_of_the_openai_client(echo_url: str) -> None:
    """Retries and fallbacks written for ChatOpenAI get the exceptions that they expect."""
    with pytest.raises(openai.NotFoundError, match="nonesuch"):
        ChatWeftline(base_url=echo_url, model="nonesuch").invoke("hi")
    with pytest.raises(openai.APIConnectionError):
        ChatWeftline(base_url="http://127.0.0.1:1", max_retries=0).invoke("hi")


class Joke(BaseModel):
    """A joke."""

    setup: str
    punchline: str


@pytest.mark.parametrize("schema", [Joke, Joke.model_json_schema()], ids=["class", "schema"])
@pytest.mark.parametrize("include_raw", [False, True])
def test_json_mode_has_a_schema(schema: Any, include_raw: bool, start_script: StartServer) -> None:
    """ChatOpenAI's JSON mode sends no schema. Ours sends one, so any model keeps to it."""
    said = {"setup": "Why?", "punchline": "So."}
    with recorded(start_script([("", json.dumps(said))])) as passed:
        llm = ChatWeftline(base_url=passed.url)
        chat = llm.with_structured_output(schema, method="json_mode", include_raw=include_raw)
        made = chat.invoke("A joke, as JSON.")
        parsed = made["parsed"] if include_raw else made  # type: ignore[index]
        assert parsed == (Joke(**said) if schema is Joke else said)
        [sent] = passed.bodies("/v1/chat/completions")
        form = sent["response_format"]
        assert form["type"] == "json_object"
        assert form["json_schema"]["schema"]["required"] == ["setup", "punchline"]
        assert llm.with_structured_output(None, method="json_mode").invoke("Any JSON.") == said
        assert passed.bodies("/v1/chat/completions")[-1]["response_format"] == {
            "type": "json_object"
        }
