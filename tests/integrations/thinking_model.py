"""A server in this process whose model thinks before each call of a tool, for ten turns.

A turn goes on only if the prompt has the thoughts of the turn before, as the model wrote them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.served_app import listening
from weftline_engine.pretend import null
from weftline_engine.pretend.null import NullConfig, NullEngine, NullMode
from weftline_server.app import create_app
from weftline_server.config import ServerConfig

TURNS = 10
# As Qwen3.5 writes a chat: thoughts behind the user's last message.
TEMPLATE = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% if tools %}tools <tool_call>{% endif %}{% for m in messages %}{{ m.role }}: "
    "{% if m.reasoning_content is string and loop.index0 > ns.last %}"
    "<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls %}[{{ c.function.name }}]{% endfor %}{{ '\n' }}{% endfor %}"
    "assistant: "
)


def called(number: int) -> str:
    call = json.dumps({"name": "look", "arguments": {"number": number}})
    return f"<tool_call>\n{call}\n</tool_call>"


def thought(number: int) -> str:
    return f"I plan step {number}."


def _written(number: int) -> str:
    """Turn `number` as the model writes it. The last one says that it is done."""
    said = called(number) if number < TURNS else "Done."
    return f"<think>\n{thought(number)}\n</think>\n\n{said}"


SCRIPT = (
    *((f"<think>{thought(last)}</think>", _written(last + 1)) for last in range(TURNS - 1, 0, -1)),
    ("found", "The thoughts are missing."),
    ("tools", _written(1)),
    ("", f"<think>\n{thought(0)}\n</think>\n\nHello."),
)  # fmt: skip


@contextmanager
def thinking_server(config: ServerConfig = ServerConfig()) -> Iterator[str]:  # noqa: B008 - frozen
    """The address of the server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(null, "CHAT_TEMPLATE", TEMPLATE)
        engine = NullConfig(mode=NullMode.SCRIPT, script=SCRIPT)
        app = create_app(config, {"null": lambda: NullEngine(engine)})
        with listening(app) as url:
            yield url
