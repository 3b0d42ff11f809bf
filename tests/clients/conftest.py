"""A server that answers by a script, and the requests that a client's program sends to it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tests.integrations.conftest import served
from tests.integrations.recording import Recording, recorded

# Before the packages are imported. Spans would go to OpenAI and counts to haystack's makers, and
# litellm would fetch a list of prices, which it also has.
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

FROM_NPM = Path(sys.prefix)
ASK = "How is the weather?"
NAME = "Name a river."
RIVER = '{"name": "Rhine", "km": 1230}'


class River(BaseModel):
    """What a river is called, and how long it is."""

    name: str
    km: int


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def calling(name: str, arguments: str) -> str:
    """What the model writes to call a tool."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


# The first rule counts whose text the prompt has.
RULES = [
    ("sunny in Rome", "It is sunny in Rome."),
    ("Ask the shell", calling("exec_command", '{"cmd": "echo sunny in $PLACE"}')),
    ("Ask Bash", calling("Bash", '{"command": "echo sunny in $PLACE"}')),
    ("Call final_result", calling("final_result", RIVER)),
    ("Call River", calling("River", RIVER)),
    ("Ask the other", calling("transfer_to_other", "{}")),
    ("in both", calling("get_weather", '{"city": "Rome"}') * 2),
    (ASK, calling("get_weather", '{"city": "Rome"}')),
    (NAME, RIVER),
    ("", "Hello there."),
]


@dataclass(frozen=True, slots=True)
class Sent:
    """What a program sent: the conversation of each request, and the last body."""

    recording: Recording

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The bodies of all requests."""
        return [body for _, _, body in self.recording.requests]

    @property
    def paths(self) -> set[str]:
        """Where they went."""
        return {path for _, path, _ in self.recording.requests}

    @property
    def talks(self) -> list[list[str]]:
        """The conversation of each request, a line for each message, call or result."""
        return [
            [line for one in body.get("messages") or body["input"] for line in _lines(one)]
            for body in self.bodies
        ]


def _lines(one: dict[str, Any]) -> Iterator[str]:
    """A message, an item of a response, or a block of a message as lines without ids."""
    kind = one.get("type")
    if kind == "function_call":
        yield _call(one)
    elif kind == "function_call_output":
        yield f"tool: {_text(one['output'])}"
    elif kind == "tool_use":
        yield _call({"name": one["name"], "arguments": json.dumps(one["input"])})
    elif kind == "tool_result":
        yield f"tool: {_text(one['content'])}"
    elif {part["type"] for part in _parts(one)} & {"tool_use", "tool_result"}:
        for part in _parts(one):
            yield from _lines({**one, "content": [part]} if part["type"] == "text" else part)
    elif kind == "reasoning":
        yield "reasoning"
    elif one.get("content"):
        yield f"{one['role']}: {_text(one['content'])}"
    for call in one.get("tool_calls") or ():
        yield _call(call["function"])


def _call(called: dict[str, Any]) -> str:
    arguments = json.loads(called["arguments"])
    return f"call: {called['name']}({', '.join(f'{k}={v}' for k, v in arguments.items())})"


def _parts(one: dict[str, Any]) -> list[dict[str, Any]]:
    return one["content"] if isinstance(one.get("content"), list) else []


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def packages_of_npm(name: str) -> Path:
    """The folder with the packages from npm, beside those from PyPI, if it has this one."""
    found = FROM_NPM / "node_modules" / name
    if shutil.which("node") is None or not found.exists():
        pytest.skip(f"{name} is missing: it needs Node and npm, and `make install-clients` again")
    return FROM_NPM


@pytest.fixture(scope="session")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that answers by the rules."""
    path = tmp_path_factory.mktemp("script") / "script.json"
    path.write_text(json.dumps([{"when": when, "reply": reply} for when, reply in RULES]))
    with served("--null-mode", "script", "--null-script", str(path)) as url:
        yield url


@pytest.fixture
def sent(server_url: str) -> Iterator[Sent]:
    """The requests of a test. Its program asks the recording's address."""
    with recorded(server_url) as recording:
        yield Sent(recording)


@pytest.fixture
def base_url(sent: Sent) -> str:
    """Where a program finds OpenAI's API."""
    return f"{sent.recording.url}/v1"
