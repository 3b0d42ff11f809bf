"""Agents whose model thinks: their tools do not see the thoughts, and their next turns do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.null.asgi import Serve
from tests.null.test_thinking import OPENED
from tests.null.tools.conftest import config
from tests.null.tools.test_tool_runs import PACE, ask, called, streamed
from weftline_engine.pretend import null
from weftline_engine.pretend.null import NullConfig, NullMode
from weftline_engine.services.tools.config import ToolsConfig
from weftline_engine.services.tools.engine import ToolEngine
from weftline_engine.services.tools.tool_calls import BegunCalls
from weftline_server.config import ServerConfig

THOUGHT = f"I could {called('add', a=1, b=1)}.\n</think>\n\n"
# The second turn reads the thoughts of the first one and the tool's result.
SCRIPT = (
    (f"<think>\n{THOUGHT}<tool_call>", "It was a sum.\n</think>\n\nThree."),
    ("<tool_response>", "The thoughts are missing."),
    ("#add", THOUGHT + called("add", a=1, b=2)),
)


async def test_an_agent_calls_what_its_answer_calls(serve: Serve, monkeypatch: Any) -> None:
    """A call in the thoughts is not made. The next prompt has them before the answer, and a
    stream tells both turns' thoughts apart from what it says."""
    monkeypatch.setattr(null, "CHAT_TEMPLATE", OPENED)
    engine = NullConfig(mode=NullMode.SCRIPT, script=SCRIPT, latency=PACE)
    begun = BegunCalls()
    server = await serve(
        engine, ServerConfig(), None, {"tool:some": lambda: ToolEngine(config(), begun)}
    )
    answer = await ask(server, "#add")
    first, result = answer["weftline"]["messages"]
    [made] = first["tool_calls"]
    assert made["function"] == {"name": "add", "arguments": '{"a": 1, "b": 2}'}
    assert first["reasoning_content"] == THOUGHT.partition("\n</think>")[0]
    assert result["content"] == "3"
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("It was a sum.", "Three.")
    chunks = await streamed(server, "#add")
    said = "".join(one["choices"][0]["delta"].get("content", "") for one in chunks)
    assert said == "Three."
    thought = "".join(one["choices"][0]["delta"].get("reasoning_content", "") for one in chunks)
    assert thought == THOUGHT.partition("\n</think>")[0] + "It was a sum."


async def test_an_agent_runs_the_code_of_its_answer(
    serve: Serve, tmp_path: Path, monkeypatch: Any
) -> None:
    """Code in the thoughts is not run, and the answers' texts are without thoughts."""
    monkeypatch.setattr(null, "CHAT_TEMPLATE", OPENED)
    block = "So.\n```python\nprint(6 * 7)\n```\n"
    script = (
        ("42", "It was a product.\n</think>\n\nIt is 42."),
        ("#code", f"Not so:\n```python\nprint(6 * 9)\n```\n</think>\n\n{block}"),
    )
    (tmp_path / "blocks.py").write_text(
        "from weftline_engine.services.tools.interpreter import Python as Base\n\n"
        "class Python(Base):\n    'Run code.'\n"
    )
    own = ToolsConfig(name="blocks", module="blocks", path=tmp_path)
    engine, begun = NullConfig(mode=NullMode.SCRIPT, script=script, latency=PACE), BegunCalls()
    server = await serve(
        engine, ServerConfig(), None, {"tool:blocks": lambda: ToolEngine(own, begun)}
    )
    answer = await ask(server, "#code", weftline={"run_tools": True, "code_tool": "python"})
    written, result = answer["weftline"]["messages"]
    assert (written["content"], result["content"]) == (block, "42")
    assert answer["choices"][0]["message"]["content"] == "It is 42."
