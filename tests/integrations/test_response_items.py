"""Every item and every tool of today's Responses API is served, passed over, or refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, get_args, get_type_hints

import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletionToolUnionParam
from openai.types.responses.response_input_item_param import ResponseInputItemParam
from openai.types.responses.tool_param import ToolParam
from pydantic import TypeAdapter

from tests.integrations.test_responses import WEATHER

USER = {"role": "user", "content": "Rome?"}
ASKED = "user: Rome?\n"
PARTS = [
    {"type": "output_text", "text": "It is ", "annotations": [], "logprobs": []},
    {"type": "refusal", "refusal": "a secret."},
]
ANSWER = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": PARTS,
}
CALLED = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"}
SHOWN = '<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call>'
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
PATCHED = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": 'a\n"b"'}
SHOWN_PATCH = '<tool_call>\n{"name": "patch", "arguments": {"input": "a\\n\\"b\\""}}\n</tool_call>'
DONE = {"type": "custom_tool_call_output", "call_id": "c1", "output": "sunny"}
IMAGE = {"type": "input_image", "detail": "auto", "image_url": "http://there/1.png"}
SEEN = "user: <tool_response>\nsunny\n</tool_response>\n"
BY_NAME = "send a call as function_call, and its result as function_call_output"

# An item of each type that is served, and what it adds to the prompt.
SERVED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "easy": ([{"role": "user", "content": "Now?"}], "user: Now?\n"),
    "message": (
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Now?"}]}],
        "user: Now?\n",
    ),
    "output": ([ANSWER], "assistant: It is a secret.\n"),
    "function_call": ([CALLED, RESULT], f"assistant: {SHOWN}\n{SEEN}"),
    "function_call_output": (
        [CALLED, {**RESULT, "output": [{"type": "input_text", "text": "sunny"}]}],
        f"assistant: {SHOWN}\n{SEEN}",
    ),
    "custom_tool_call": ([PATCHED, DONE], f"assistant: {SHOWN_PATCH}\n{SEEN}"),
    "custom_tool_call_output": (
        [PATCHED, {**DONE, "output": [{"type": "input_text", "text": "sunny"}]}],
        f"assistant: {SHOWN_PATCH}\n{SEEN}",
    ),
    "additional_tools": ([{"type": "additional_tools", "role": "developer", "tools": []}], ""),
    # Passed over.
    "reasoning": (
        [
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "They ask of Rome."}],
                "encrypted_content": "x",
            }
        ],
        "",
    ),
    "mcp_list_tools": (
        [{"type": "mcp_list_tools", "id": "1", "server_label": "docs", "tools": []}],
        "",
    ),
}
SHELL = {"type": "exec", "command": ["ls"], "env": {}}
# An item of each type that is refused, and what the answer says to do.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "compaction": (
        {"encrypted_content": "x"},
        "its text is encrypted: send the messages that it stands for",
    ),
    "compaction_trigger": ({}, "the server compacts no input: leave it out"),
    "configuration_update": ({}, "set reasoning and text of the request"),
    "file_search_call": ({"id": "1", "queries": ["x"], "status": "completed"}, BY_NAME),
    "web_search_call": (
        {"id": "1", "status": "completed", "action": {"type": "search", "query": "x"}},
        BY_NAME,
    ),
    "computer_call": (
        {"id": "1", "call_id": "c", "pending_safety_checks": [], "status": "completed"},
        BY_NAME,
    ),
    "computer_call_output": ({"call_id": "c", "output": {"type": "computer_screenshot"}}, BY_NAME),
    "tool_search_call": ({"arguments": {}}, BY_NAME),
    "tool_search_output": ({"tools": []}, BY_NAME),
    "image_generation_call": ({"id": "1", "result": None, "status": "completed"}, BY_NAME),
    "code_interpreter_call": (
        {"id": "1", "code": "1", "container_id": "c", "outputs": None, "status": "completed"},
        BY_NAME,
    ),
    "local_shell_call": (
        {"id": "1", "action": SHELL, "call_id": "c", "status": "completed"},
        BY_NAME,
    ),
    "local_shell_call_output": ({"id": "1", "output": "{}"}, BY_NAME),
    "shell_call": ({"action": {"commands": ["ls"]}, "call_id": "c"}, BY_NAME),
    "shell_call_output": ({"call_id": "c", "output": []}, BY_NAME),
    "apply_patch_call": (
        {
            "call_id": "c",
            "operation": {"type": "delete_file", "path": "a"},
            "status": "completed",
        },
        BY_NAME,
    ),
    "apply_patch_call_output": ({"call_id": "c", "status": "completed"}, BY_NAME),
    "mcp_approval_request": (
        {"id": "1", "arguments": "{}", "name": "x", "server_label": "docs"},
        BY_NAME,
    ),
    "mcp_approval_response": ({"approval_request_id": "1", "approve": True}, BY_NAME),
    "mcp_call": ({"id": "1", "arguments": "{}", "name": "x", "server_label": "docs"}, BY_NAME),
    "program": ({"id": "1", "call_id": "c", "code": "1", "fingerprint": "x"}, BY_NAME),
    "program_output": (
        {"id": "1", "call_id": "c", "result": "1", "status": "completed"},
        BY_NAME,
    ),
    "holodeck_call": ({}, BY_NAME),  # of a future version
}
# OpenAI runs these, or its models alone write their calls. They are left out of what is offered,
# and refused as the choice.
HOSTED_TOOLS: dict[str, dict[str, Any]] = {
    "file_search": {"vector_store_ids": ["x"]},
    "computer": {},
    "computer_use_preview": {"display_height": 1, "display_width": 1, "environment": "linux"},
    "web_search": {},
    "web_search_2025_08_26": {},
    "web_search_preview": {},
    "web_search_preview_2025_03_11": {},
    "mcp": {"server_label": "docs", "server_url": "http://there"},
    "code_interpreter": {"container": "c"},
    "programmatic_tool_calling": {},
    "image_generation": {},
    "tool_search": {},
    "local_shell": {},
    "shell": {},
    "apply_patch": {},
}
REFUSED_TOOLS: dict[str, dict[str, Any]] = {
    "holodeck": {},  # of a future version
}


def types_of(union: Any) -> set[str]:
    """The values that `type` has in the members of the openai package's union."""
    found: set[str] = set()

    def collect(hint: Any) -> None:
        for one in get_args(hint):
            found.add(one) if isinstance(one, str) else collect(one)

    for member in get_args(union):
        collect(get_type_hints(member)["type"])
    return found


ITEMS, TOOLS = types_of(ResponseInputItemParam), types_of(ToolParam)


@pytest.fixture(scope="module")
def client(echo_url: str) -> Iterator[openai.OpenAI]:
    """Answers with the rendered prompt."""
    with openai.OpenAI(base_url=f"{echo_url}/v1", api_key="none", max_retries=0) as made:
        yield made


Refusal = Callable[..., openai.BadRequestError]


@pytest.fixture
def refusal(client: openai.OpenAI) -> Refusal:
    """The error of a request that is refused."""

    def ask(**request: Any) -> openai.BadRequestError:
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model="null", **request)
        return refused.value

    return ask


def test_the_tables_have_every_type_of_the_package() -> None:
    """A newer openai package with a new type fails here until somebody decides on the type."""
    assert len(ITEMS) > 20 and len(TOOLS) > 14
    # A reference is replaced by the item that is kept.
    assert ITEMS - SERVED.keys() - REFUSED.keys() == {"item_reference"}
    assert TOOLS - REFUSED_TOOLS.keys() - HOSTED_TOOLS.keys() == {
        "function",
        "namespace",
        "custom",
    }


@pytest.mark.parametrize("name", SERVED)
def test_an_item_is_served(client: openai.OpenAI, name: str) -> None:
    """It adds its text to the prompt. One without text for the model adds none."""
    items, adds = SERVED[name]
    if name in ITEMS or name in ("easy", "output"):
        TypeAdapter(list[ResponseInputItemParam]).validate_python(items)
    made = client.responses.create(model="null", input=[USER, *items])
    assert made.output_text == f"{ASKED}{adds}assistant: "


@pytest.mark.parametrize("name", REFUSED)
def test_an_item_is_refused(refusal: Refusal, name: str) -> None:
    """The error names the item, its type, and what to send instead."""
    item, instead = REFUSED[name]
    item = {"type": name, **item}
    if name in ITEMS:
        TypeAdapter(ResponseInputItemParam).validate_python(item)
    error = refusal(input=[USER, item])
    assert error.param == "input.1"
    assert error.body["message"] == (f"input.1: an item of type '{name}' is not served: {instead}")


@pytest.mark.parametrize("name", REFUSED_TOOLS)
def test_a_tool_is_refused(refusal: Refusal, name: str) -> None:
    """Among the tools, among those that an item adds, and as the choice."""
    tool = {"type": name, **REFUSED_TOOLS[name]}
    if name in TOOLS:
        TypeAdapter(ToolParam).validate_python(tool)
    why = (
        f": a tool of type '{name}' is not served: declare a function that does the same, and "
        "compute it in the client"
    )
    added = {"type": "additional_tools", "role": "developer", "tools": [tool]}
    for place, request in {
        "tools.1": {"input": "x", "tools": [WEATHER, tool]},
        "input.1.tools.0": {"input": [USER, added]},
        "tool_choice": {"input": "x", "tools": [WEATHER], "tool_choice": {"type": name}},
        "tool_choice.tools.0": {
            "input": "x",
            "tools": [WEATHER],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": name}]},
        },
    }.items():
        error = refusal(**request)
        assert (error.param, error.body["message"]) == (place, place + why)


@pytest.mark.parametrize("name", HOSTED_TOOLS)
def test_a_hosted_tool_is_left_out(client: openai.OpenAI, refusal: Refusal, name: str) -> None:
    """Among the tools and among those that an item adds. As the choice it is refused."""
    tool = {"type": name, **HOSTED_TOOLS[name]}
    if name in TOOLS:
        TypeAdapter(ToolParam).validate_python(tool)
    added = {"type": "additional_tools", "role": "developer", "tools": [tool]}
    raw = client.responses.with_raw_response.create(model="null", input=[USER, added], tools=[tool])
    assert raw.headers["Weftline-Left-Out"] == name
    assert raw.parse().output_text == f"{ASKED}assistant: "
    choice = {"type": name}
    assert refusal(input="x", tools=[WEATHER], tool_choice=choice).param == "tool_choice"


def test_a_tool_of_a_chat_is_refused(client: openai.OpenAI) -> None:
    """Chats have a type of tool besides functions, which is named in the same places."""
    assert types_of(ChatCompletionToolUnionParam) == {"function", "custom"}
    custom = {"type": "custom", "custom": {"name": "x"}}
    weather = {"type": "function", "function": {"name": "get_weather"}}
    among = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [custom]}}
    for place, request in {
        "tools.1": {"tools": [weather, custom]},
        "tool_choice": {"tools": [weather], "tool_choice": custom},
        "tool_choice.allowed_tools.tools.0": {"tools": [weather], "tool_choice": among},
    }.items():
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="null", messages=[USER], **request)
        assert refused.value.param == place
        assert refused.value.body["message"].startswith(f"{place}: a tool of type 'custom' is not")


def test_a_part_that_is_no_text_is_refused(refusal: Refusal) -> None:
    """An image in a message, and in the result of a call."""
    message = {"role": "user", "content": [{"type": "input_text", "text": "x"}, IMAGE]}
    why = ": a part of type 'input_image' is not served: send text"
    error = refusal(input=[message])
    assert (error.param, error.body["message"]) == (
        "input.0.content.1",
        f"input.0.content.1{why}",
    )
    error = refusal(input=[CALLED, {**RESULT, "output": [IMAGE]}])
    assert error.param == "input.1.output.0"


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "input must have a message"),
        ([{"type": "reasoning", "id": "rs_1", "summary": []}], "input must have a message"),
        ([{}], "input.0: an item needs a type, and a message its role: give one"),
        ([{"type": "message"}], "input.0.role: Field required"),
        ([{"role": "user"}], "input.0.content: Field required"),
        ([{"type": "function_call"}], "input.0.call_id: Field required"),
        ([{"type": "function_call_output"}], "input.0.output: Field required"),
        (["Rome?"], "input.0: Input should be an object"),
        ([{"type": 3}], "input.0.type: Input should be a valid string"),
    ],
)  # fmt: skip
def test_an_item_that_is_not_complete(
    refusal: Refusal, items: list[dict[str, Any]], message: str
) -> None:
    """The error is about the item's own type."""
    assert refusal(input=items).body["message"] == message


def test_an_answer_and_its_calls_are_one_message(client: openai.OpenAI) -> None:
    """As the model wrote them, so that the next prompt begins with the last one and its answer.

    The thoughts between them part nothing.
    """
    thought = SERVED["reasoning"][0][0]
    other = {**CALLED, "call_id": "c2"}
    items = [USER, thought, ANSWER, thought, CALLED, thought, other, RESULT, USER]
    made = client.responses.create(model="null", input=items)
    assert made.output_text == (
        f"{ASKED}assistant: It is a secret.\n{SHOWN}\n{SHOWN}\n{SEEN}{ASKED}assistant: "
    )


def tokens(url: str, **request: Any) -> int:
    """The length of the prompt, which shows the tools that are offered."""
    answer = httpx2.post(f"{url}/v1/responses", json={"max_output_tokens": 9, **request})
    return int(answer.raise_for_status().json()["usage"]["input_tokens"])


def test_tools_of_an_item_are_offered(echo_url: str) -> None:
    """As those of the request are."""
    added = {"type": "additional_tools", "role": "developer", "tools": [WEATHER]}
    shown = tokens(echo_url, input=[USER], tools=[WEATHER])
    assert tokens(echo_url, input=[USER, added]) == shown > tokens(echo_url, input=[USER])


def test_tools_that_are_not_allowed_are_not_offered(refusal: Refusal, echo_url: str) -> None:
    """Of two tools one is allowed, so the request is that of one tool."""
    both = [WEATHER, {**WEATHER, "name": "get_time"}]

    def allowed(name: str) -> dict[str, Any]:
        tool = {"type": "function", "name": name}
        return {"type": "allowed_tools", "mode": "auto", "tools": [tool]}

    one = tokens(echo_url, input="x", tools=[WEATHER])
    assert tokens(echo_url, input="x", tools=both, tool_choice=allowed("get_weather")) == one
    assert tokens(echo_url, input="x", tools=both) > one
    error = refusal(input="x", tools=both, tool_choice=allowed("nothing"))
    assert error.body["message"] == "tool_choice names 'nothing', which is not among the tools"


def test_a_chat_of_which_some_tools_are_allowed(client: openai.OpenAI) -> None:
    """The request is that of the tool that is allowed. A tool may leave out its type."""
    tools = [{"type": "function", "function": {"name": name}} for name in ("look", "ask")]
    among = {"mode": "auto", "tools": [{"function": {"name": "ask"}}]}

    def length(**request: Any) -> int:
        made = client.chat.completions.create(
            model="null", messages=[USER], max_tokens=9, **request
        )
        assert made.usage is not None
        return made.usage.prompt_tokens

    choice = {"type": "allowed_tools", "allowed_tools": among}
    one = length(tools=[{"function": {"name": "ask"}}])
    assert length(tools=tools, tool_choice=choice) == one < length(tools=tools)
