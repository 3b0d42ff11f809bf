"""What a Weftline is made with: OpenAILike's arguments, copies, and patience with a server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

import pytest
from llama_index.core import PromptTemplate, VectorStoreIndex
from llama_index.core.extractors import KeywordExtractor
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.llms import ChatMessage, ImageBlock
from llama_index.core.prompts import RichPromptTemplate
from llama_index.core.query_engine import RouterQueryEngine, SubQuestionQueryEngine
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.tools import QueryEngineTool
from llama_index.embeddings.weftline import WeftlineEmbedding
from llama_index.llms.weftline import Weftline
from llama_index.vector_stores.weftline import WeftlineVectorStore
from pydantic import BaseModel

from tests.integrations.conftest import StartServer, served
from tests.integrations.recording import POLL_S, recorded
from tests.integrations.test_llama_ahead import CHAT, SUBMIT
from tests.waits import wait_until
from weftline.errors import (
    ContextTooLong,
    EngineFailed,
    InvalidRequest,
    Overloaded,
    Timeout,
    WeftlineError,
)

NODES = [NodeWithScore(node=TextNode(text=text)) for text in ("Rome is old.", "Rome is big.")]


def test_the_server_that_openai_like_would_call(echo_url: str) -> None:
    """`api_base` is where requests go, and the default address is not asked."""
    with recorded(echo_url) as proxy:
        llm = Weftline(api_base=f"{proxy.url}/v1", api_key="k", max_retries=1, timeout=30)
        assert llm.complete("Hi").text == "user: Hi\nassistant: "
        # The session of the run is closed later.
        sent = [path for verb, path, _ in proxy.requests if verb != "DELETE"]
        assert sent == ["/v1/models", "/v1/chat/completions"]
    assert llm.base_url == proxy.url and llm.asking.server.max_retries == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"reuse_client": False}, "'reuse_client': its connections are always reused"),
        ({"max_new_tokens": 3}, "'max_new_tokens': give max_tokens"),
        ({"top_k": 3}, "'top_k': give request fields as additional_kwargs"),
        ({"base_url": "http://a", "api_base": "http://b"}, "base_url and api_base are one setting"),
    ],
)
def test_what_is_not_taken_is_refused(given: dict[str, Any], says: str) -> None:
    """Nothing is dropped without a word."""
    with pytest.raises(TypeError, match=says):
        Weftline(**given)


def test_headers_and_retries() -> None:
    """The headers go with every request, and a refused request is sent again as often as said."""
    seen: list[str | None] = []

    class Full(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.headers["X-Team"])
            self.send_response(429)
            self.send_header("Retry-After", "0")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Full) as http:
        thread = Thread(target=http.serve_forever, args=(POLL_S,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{http.server_address[1]}"
            headers = {"X-Team": "blue"}
            llm = Weftline(api_base=url, max_retries=3, default_headers=headers, context_window=99)
            with pytest.raises(Overloaded):
                llm.complete("Hi")
        finally:
            http.shutdown()
            thread.join()
    assert seen == ["blue"] * 4


def test_a_copy_works_and_goes_where_it_says(echo_url: str) -> None:
    """A deep copy answers. A copy with another address calls that one."""
    llm = Weftline(base_url="http://127.0.0.1:9", max_tokens=7)
    copy = deepcopy(llm)
    copy.base_url = echo_url
    other = llm.model_copy(update={"base_url": echo_url})
    assert copy.complete("Hi").text == other.complete("Hi").text == "user: Hi\nassistant: "
    assert copy.max_tokens == 7 and llm.base_url == "http://127.0.0.1:9"


def test_the_model_has_the_name_that_is_served(echo_url: str) -> None:
    """The metadata asks the server where the program names no model."""
    assert Weftline(base_url=echo_url).metadata.model_name == "null"


@pytest.fixture
def silent_url() -> Iterator[str]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_silent_server_is_not_waited_for(silent_url: str) -> None:
    """Single calls, streams and graphs end with Timeout, once the LLM's timeout has passed."""
    llm = Weftline(base_url=silent_url, timeout=0.2, context_window=3900)
    with pytest.raises(Timeout, match="sent nothing for as long as the timeout allows"):
        llm.complete("Hi")
    with pytest.raises(Timeout):
        list(llm.stream_complete("Hi"))
    with pytest.raises(Timeout):
        asyncio.run(llm.acomplete("Hi"))
    for streaming in (False, True):
        made = get_response_synthesizer(response_mode="refine", llm=llm, streaming=streaming)
        with pytest.raises(Timeout, match=r"no answer came within 0\.2 s"):
            str(made.synthesize("What?", NODES))


def test_a_silent_server_ends_the_graphs_of_engines(silent_url: str) -> None:
    """Queries, routers, sub-questions and pipelines end with Timeout, and so does each request."""
    at: Any = {"base_url": silent_url, "timeout": 0.2}
    llm = Weftline(context_window=3900, **at)
    embeds, store = WeftlineEmbedding(**at), WeftlineVectorStore(**at)
    engine = VectorStoreIndex.from_vector_store(store, embeds).as_query_engine(llm=llm)
    tools = [QueryEngineTool.from_defaults(engine, name=name, description=name) for name in "ab"]
    routed = RouterQueryEngine.from_defaults(
        tools, llm=llm, selector=LLMSingleSelector.from_defaults(llm)
    )
    divided = SubQuestionQueryEngine.from_defaults(
        tools, llm=llm, question_gen=LLMQuestionGenerator.from_defaults(llm), verbose=False
    )
    for made in (engine, routed, divided):
        with pytest.raises(Timeout):
            made.query("What?")
        with pytest.raises(Timeout):
            asyncio.run(made.aquery("What?"))
    made = IngestionPipeline(transformations=[embeds], vector_store=store)
    with pytest.raises(Timeout):
        made.run(nodes=[TextNode(text="Rome is old.")])
    with pytest.raises(Timeout):
        store.add([TextNode(text="Rome is old.", embedding=[1.0])])


class Town(BaseModel):
    """A town."""

    name: str


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("mode", ["refine", "compact", "tree_summarize", "accumulate"])
def test_a_refusal_reaches_the_user(echo_url: str, mode: str, ahead: bool, is_async: bool) -> None:
    """Refine takes a ValueError for a bad answer and goes on; ours is none, so it is raised."""
    llm = Weftline(base_url=echo_url, ahead=ahead, additional_kwargs={"top_p": 7.0})
    made = get_response_synthesizer(response_mode=mode, llm=llm)
    with pytest.raises(InvalidRequest, match="top_p must be at most 1"):
        if is_async:
            asyncio.run(made.asynthesize("What?", NODES))
        else:
            made.synthesize("What?", NODES)


def test_an_image_reaches_the_user_as_an_error(echo_url: str) -> None:
    """A multimodal refine takes a ValueError for a bad answer too."""
    llm = Weftline(base_url=echo_url, context_window=3900)
    image = ImageBlock(url="http://127.0.0.1:9/rome.png")
    with pytest.raises(InvalidRequest, match="text models, and a message holds a ImageBlock"):
        llm.chat([ChatMessage(role="user", blocks=[image])])


def test_no_error_is_one_that_refine_swallows() -> None:
    """Refine catches ValueError and TypeError, and goes on."""
    kinds, known = [WeftlineError], set()
    while kinds:
        kinds += (found := set(kinds.pop().__subclasses__()) - known)
        known |= found
    assert {InvalidRequest, ContextTooLong, EngineFailed} <= known
    assert not any(issubclass(kind, (ValueError, TypeError)) for kind in known)


def test_a_prompt_that_is_too_long_reaches_the_user(echo_url: str) -> None:
    """The LLM states a larger context window than the server has."""
    with served("--engine", "openai", "--connect", echo_url, "--context-limit", "64") as url:
        llm = Weftline(base_url=url, context_window=4096, max_tokens=8)
        made = get_response_synthesizer(response_mode="refine", llm=llm)
        with pytest.raises(ContextTooLong):
            made.synthesize("What? " * 200, NODES)


def test_objects_from_a_hosted_endpoint(start_script: StartServer) -> None:
    """All defaults: an OpenAI endpoint gets the forced tool of an object in its own field."""
    call = '<tool_call>\n{"name": "Town", "arguments": {"name": "Rome"}}\n</tool_call>'
    upstream = start_script([("", call)])
    with recorded(upstream) as proxy, served("--engine", "openai", "--connect", proxy.url) as url:
        llm = Weftline(base_url=url, context_window=3900)
        made = get_response_synthesizer(response_mode="compact", llm=llm, output_cls=Town)
        assert str(made.synthesize("What?", NODES)) == '{"name":"Rome"}'
        [body] = proxy.bodies("/v1/chat/completions")
    assert body["tools"][0]["function"]["parameters"]["required"] == ["name"]
    assert body["tool_choice"] == "required"


def test_a_failed_call_is_not_made_twice(start_script: StartServer) -> None:
    """The endpoint's own error is raised; the call that was sent ahead is not sent again."""
    upstream = start_script([("nothing matches this", "x")])
    with recorded(upstream) as proxy, served("--engine", "openai", "--connect", proxy.url) as url:
        llm = Weftline(base_url=url, context_window=3900)
        made = get_response_synthesizer(response_mode="refine", llm=llm)
        with pytest.raises(EngineFailed):
            made.synthesize("What?", NODES)
        sent = len(proxy.bodies("/v1/chat/completions"))
    assert sent == 3  # the server's own attempts at one call


def test_num_workers_is_kept(start_script: StartServer) -> None:
    """An extractor with `num_workers` has that many calls under way, and sends nothing ahead."""
    most, under_way, lock = 0, 0, Lock()

    class Counting(Weftline):
        async def achat(self, messages: Any, **kwargs: Any) -> Any:
            nonlocal most, under_way
            with lock:
                under_way += 1
                most = max(most, under_way)
            try:
                return await super().achat(messages, **kwargs)
            finally:
                with lock:
                    under_way -= 1

    chunks = [TextNode(text=f"Text {k}.") for k in range(6)]
    with recorded(start_script([("", "words")])) as proxy:
        llm = Counting(base_url=proxy.url, context_window=3900)
        KeywordExtractor(llm=llm, num_workers=2).extract(chunks)
        assert (len(proxy.bodies(CHAT)), proxy.bodies(SUBMIT), most) == (6, [], 2)
        KeywordExtractor(llm=llm).extract(chunks)
        assert (len(proxy.bodies(CHAT)), len(proxy.bodies(SUBMIT))) == (6, 1)


@pytest.mark.parametrize("by", ["function", "filter"])
def test_templates_that_change_an_answer(start_script: StartServer, by: str) -> None:
    """What stands for an answer to come reaches no function or filter, and so no model."""
    seen: list[str] = []

    def loud(existing_answer: str = "", **others: Any) -> str:
        seen.append(existing_answer)
        return existing_answer.upper()

    text = "Better than {existing_answer} for {query_str}: {context_msg}"
    template: Any = PromptTemplate(text, function_mappings={"existing_answer": loud})
    if by == "filter":
        text = "Better than {{ existing_answer | upper }} for {{ query_str }}: {{ context_msg }}"
        template = RichPromptTemplate(text)
    said = []
    for ahead in (True, False):
        with recorded(start_script([("YES.", "It was loud."), ("", "yes.")])) as proxy:
            llm = Weftline(base_url=proxy.url, context_window=3900, ahead=ahead)
            made = get_response_synthesizer(
                response_mode="refine", llm=llm, refine_template=template
            )
            said.append(str(made.synthesize("What?", NODES)))
            assert "\ue000" not in str(proxy.requests) and "\\ue000" not in str(proxy.requests)
    assert said == ["It was loud."] * 2 and not any("\ue000" in value for value in seen)


def test_an_exception_of_on_graph_is_logged(
    echo_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The program has its answer all the same, and the session is closed."""

    def broken(graph: Any) -> None:
        shown.append(graph)
        raise RuntimeError("no screen")

    shown: list[Any] = []
    llm = Weftline(base_url=echo_url, on_graph=broken)
    assert llm.predict(PromptTemplate("Hi {name}"), name="you") == "user: Hi you\nassistant: "
    wait_until(lambda: "the graph of a run cannot be shown: no screen" in caplog.text)
    assert len(shown) == 1
