"""`weftline serve FILE.gguf` of three families: chats with tools through both adapters.

The weights are random, so calls are forced, and an answer is one of two.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.weftline import Weftline
from pydantic import BaseModel
from tokenizers import Tokenizer

from langchain_weftline import ChatWeftline
from tests.gguf_chats import FAMILIES, write_chat_gguf
from weftline.local import local_server
from weftline_engine.own.models import default_home, resolve

# What a prompt of a question and of a tool's result looks like, by family.
PROMPTS = {
    "qwen3": (
        "<|im_start|>user\nIs it warm in Rome?<|im_end|>\n<|im_start|>assistant\n",
        '<|im_start|>assistant\n\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n'
        "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n31 degrees\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n",
    ),
    "llama": (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nIs it warm in Rome?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        '{"name": "weather", "parameters": {"city": "Rome"}}<|eot_id|>'
        "<|start_header_id|>ipython<|end_header_id|>\n\n31 degrees<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "gemma3": (
        "<bos><start_of_turn>user\nIs it warm in Rome?<end_of_turn>\n<start_of_turn>model\n",
        "<start_of_turn>user\n<tool_response>\n31 degrees\n</tool_response><end_of_turn>\n"
        "<start_of_turn>model\n",
    ),
}
QUESTION = "Is it warm in Rome?"
ANSWERS = ["It is warm.", "It is cold."]


class City(BaseModel):
    """Of which city the weather is asked."""

    city: Literal["Rome"]


def weather(city: str) -> str:
    """The weather of a city."""
    return f"{city}: 31 degrees"


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, smollm2_directory: Path
) -> Iterator[tuple[Path, str]]:
    """A folder with a file of each family, and the address of a server of all three.

    One server converts them faster than three, which import torch and transformers each.
    """
    folder = tmp_path_factory.mktemp("served")
    tables = []
    for name, family in FAMILIES.items():
        path = folder / f"{name}.gguf"
        write_chat_gguf(path, family, smollm2_directory / "tokenizer.json")
        tables.append(f'[[engine]]\nmodel = "{path}"\nkv_tokens = 8192\n')
    (folder / "weftline.toml").write_text("\n".join(tables))
    kernels = default_home() / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    (folder / "kernels").symlink_to(kernels)  # compiled once on a machine
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFTLINE_HOME", str(folder))
        with local_server("--config", str(folder / "weftline.toml")) as url:
            yield folder, url


@pytest.mark.parametrize("name", FAMILIES)
def test_langchain_calls_a_tool_and_reads_its_result(served: tuple[Path, str], name: str) -> None:
    """A forced call is a call with the schema's arguments. The next turn reads its result."""
    model = ChatWeftline(base_url=served[1], model=name, temperature=0, max_tokens=400)
    here = StructuredTool.from_function(weather, args_schema=City)
    forced = model.bind_tools([here], tool_choice="weather")
    said = forced.invoke([HumanMessage(QUESTION)])
    [call] = said.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Rome"})
    parts = list(forced.stream([HumanMessage(QUESTION)]))
    [streamed] = sum(parts[1:], parts[0]).tool_calls
    assert (streamed["name"], streamed["args"]) == ("weather", {"city": "Rome"})
    result = ToolMessage(here.invoke(call["args"]), tool_call_id=call["id"])
    answer = model.bind_tools([here]).invoke(
        [HumanMessage(QUESTION), said, result],
        tool_choice="none",
        extra_body={"guided_choice": ANSWERS},
    )
    assert answer.content in ANSWERS and not answer.tool_calls


@pytest.mark.parametrize("name", FAMILIES)
def test_llama_index_calls_a_tool_and_reads_its_result(served: tuple[Path, str], name: str) -> None:
    """The same through LlamaIndex, and the call is made."""
    llm = Weftline(name, base_url=served[1], temperature=0, max_tokens=400)
    here = FunctionTool.from_defaults(weather, fn_schema=City)
    response = llm.chat_with_tools([here], user_msg=QUESTION, tool_required=True)
    [call] = llm.get_tool_calls_from_response(response)
    assert (call.tool_name, call.tool_kwargs) == ("weather", {"city": "Rome"})
    made = llm.predict_and_call([here], user_msg=QUESTION, tool_required=True)
    assert made.response == "Rome: 31 degrees"
    history = [
        ChatMessage(role="user", content=QUESTION),
        response.message,
        ChatMessage("31 degrees", role="tool", additional_kwargs={"tool_call_id": call.tool_id}),
    ]
    answer = llm.chat(history, guided_choice=ANSWERS).message.content
    assert answer in ANSWERS


@pytest.mark.parametrize("name", FAMILIES)
def test_a_prompt_is_written_by_the_template_of_the_file(
    served: tuple[Path, str], name: str
) -> None:
    """The tokens of a chat are those of the family's marks, each of them one token, and say the
    same as the template."""
    folder, url = served
    directory = resolve(str(folder / f"{name}.gguf"), home=folder, direct=True)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))

    def prompt(messages: list[dict[str, Any]]) -> str:
        body = {"model": name, "messages": messages}
        said = httpx2.post(f"{url}/tokenize", json=body, timeout=60).json()
        return str(tokenizer.decode(said["tokens"], skip_special_tokens=False))

    question = {"role": "user", "content": QUESTION}
    call = {"name": "weather", "arguments": '{"city": "Rome"}'}
    history: list[dict[str, Any]] = [
        question,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_123456", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "call_123456", "content": "31 degrees"},
    ]
    plain, with_result = PROMPTS[name]
    assert prompt([question]) == plain
    assert prompt(history).endswith(with_result)
