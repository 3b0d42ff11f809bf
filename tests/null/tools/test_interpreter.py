"""The code interpreter: statements run while the model writes, in the order of the code."""

from __future__ import annotations

import ast
import json
import random
import re
from pathlib import Path

import pytest

from tests.null.asgi import Serve
from tests.null.tools.conftest import Calls, running
from tests.null.tools.test_tool_runs import PACE
from tests.null.tools.test_tool_sandbox import bubblewrap_works
from weftline.toolkit import Reject
from weftline_engine import api
from weftline_engine.pretend.null import NullConfig, NullMode
from weftline_engine.services.tools.config import ToolsConfig
from weftline_engine.services.tools.engine import ToolEngine
from weftline_engine.services.tools.interpreter import Python
from weftline_engine.services.tools.statements import Statements
from weftline_engine.services.tools.tool_calls import BegunCalls
from weftline_server.config import ServerConfig

CODE = '''from __future__ import annotations
# sums
def add(a, b):
    """Add.

two numbers"""

    return a + b
@str
class Odd:
    pass
if add(1, 2) == 3:
    print("three")

# otherwise
elif True:
    print("two")
else:
    print("one")
for n in [
1,
2]:
    print(n)
try:
    1 / 0
except ZeroDivisionError:
    print("zero")
finally:
    print("done")
x = """a
b = 1
"""; y = 2
add(x, "c")
'''


def parts_of(code: str, cuts: list[str]) -> list[str]:
    statements = Statements()
    found = [one for cut in cuts for one in statements.feed(cut)]
    return [*found, statements.end()]


def test_code_is_split_into_its_statements() -> None:
    """However it is cut, and one statement behind."""
    whole = parts_of(CODE, [CODE])
    assert "".join(whole) == CODE
    firsts = [one.strip().splitlines()[0] for one in whole]
    assert firsts == [
        "from __future__ import annotations",
        "def add(a, b):",
        "@str",
        "if add(1, 2) == 3:",
        "for n in [",
        "try:",
        'x = """a',
        'add(x, "c")',
    ]
    assert parts_of(CODE, list(CODE)) == whole
    chance = random.Random(1)
    for _ in range(50):
        places = sorted(chance.sample(range(len(CODE)), 5))
        cuts = [CODE[a:b] for a, b in zip([0, *places], [*places, len(CODE)], strict=True)]
        assert parts_of(CODE, cuts) == whole
    statements = Statements()
    assert statements.feed("print(1)\n") == [] and statements.feed("  \n") == []
    assert statements.feed("print(2)\n") == ["print(1)\n  \n"]


@pytest.mark.parametrize("path", sorted(Path(ast.__file__).parent.glob("*.py"))[:40:8], ids=str)
def test_files_of_python_are_split_into_their_statements(path: Path) -> None:
    """Each part is a statement or several, and together they are the file."""
    code = path.read_text(encoding="utf-8")
    parts = parts_of(code, re.findall(r"(?s).{1,97}", code))
    assert "".join(parts) == code
    bodies = [one for part in parts for one in ast.parse(part).body]
    assert [ast.dump(one) for one in bodies] == [ast.dump(one) for one in ast.parse(code).body]


def test_a_program_runs_statement_by_statement() -> None:
    """It prints as the whole program would. Values of expressions are shown."""
    python = Python()
    for part in parts_of(CODE, [CODE]):
        python.statement("code", part)
    assert python.finish() == "three\n1\n2\nzero\ndone\n'a\\nb = 1\\nc'"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "print('a')\nb = 1\nprint(c)\nprint('d')\n",
            "NameError: name 'c' is not defined in line 3\n"
            "2 statements ran before, and printed:\na",
        ),
        ("a = 1\nb = = 2\n", "SyntaxError: invalid syntax in line 2\n1 statement ran before."),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3 in line 2\n1 statement ran before."),
    ],
)
def test_an_error_says_which_statements_ran(code: str, said: str) -> None:
    """The model reads the line, and what was printed before."""
    python = Python()
    with pytest.raises(Reject) as stopped:
        for part in parts_of(code, list(code)):
            python.statement("code", part)
    assert str(stopped.value) == said


async def test_the_interpreter_needs_a_sandbox() -> None:
    """Without `sandbox = true` its module does not load."""
    with pytest.raises(api.EngineDied, match="runs code of the model: set sandbox = true"):
        await running(module="weftline_engine.services.tools.interpreter", path=None)


async def sandboxed() -> Calls:
    if not bubblewrap_works():
        pytest.skip("bubblewrap 0.8 is not here, or may not be used")
    return await running(
        module="weftline_engine.services.tools.interpreter", path=None, sandbox=True
    )


async def test_a_statement_runs_while_the_next_is_written() -> None:
    """The second statement fails before the third is complete: the call ends as it is written."""
    calls = await sandboxed()
    try:
        id = calls.begin("python")
        begun = json.dumps({"code": "print(1)\nprint(b)\nprint(3)\n"})[:-2]
        calls.engine.feed(id, 0, begun, False)
        value = await calls.value(id)
        assert value["rejected"]
        assert value["content"].startswith("NameError: name 'b' is not defined in line 2")
        assert value["content"].endswith("1 statement ran before, and printed:\n1")
        whole = await calls.call("python", code="a = 2\na * 21")
        assert whole == {"content": "42", "is_error": False, "rejected": False}
    finally:
        await calls.engine.close()
        await calls.reading


async def test_fenced_code_runs_while_the_model_writes(serve: Serve, tmp_path: Path) -> None:
    """Blocks in the answer are calls of the tool. A statement that fails stops the turn, and the
    model goes on with what the tool said. The answer's text keeps its blocks."""
    block = "I compute.\n```python\nx = 6\nprint(x * 7)\n```\n"
    wrong = "So.\n```python\nprint(1)\nprint(b)\nprint(2)\n" + "print(3)\n" * 400 + "```\n"
    script = (
        ("42", "It is 42."),
        ("NameError: name 'b' is not defined", "I forgot b."),
        ("#block", block),
        ("#wrong", wrong),
    )
    (tmp_path / "blocks.py").write_text(
        "from weftline_engine.services.tools.interpreter import Python as Base\n\n"
        "class Python(Base):\n    'Run code.'\n"
    )
    config = ToolsConfig(name="blocks", module="blocks", path=tmp_path)
    begun = BegunCalls()
    engine = NullConfig(mode=NullMode.SCRIPT, script=script, latency=PACE)
    server = await serve(
        engine, ServerConfig(), None, {"tool:blocks": lambda: ToolEngine(config, begun)}
    )
    for text, said, first in (
        ("#block", "It is 42.", block),
        ("#wrong", "I forgot b.", None),
    ):
        answer = await server.http.post(
            "/v1/chat/completions",
            json={
                "messages": [{"role": "user", "content": text}],
                "max_tokens": 4000,
                "weftline": {"run_tools": True, "code_tool": "python"},
            },
        )
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert body["choices"][0]["message"]["content"] == said
        answered, result = body["weftline"]["messages"]
        assert "tool_calls" not in answered and result["role"] == "tool"
        if first is not None:
            assert answered["content"] == first and result["content"] == "42"
        else:
            assert answered["content"].count("print(3)") < 400
            assert "1 statement ran before, and printed:\n1" in result["content"]


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ({"run_tools": True, "code_tool": "add"}, "is no tool of this server that takes one text"),
        ({"run_tools": True, "code_tool": "gone"}, "weftline_engine.services.tools.interpreter"),
        ({"code_tool": "python"}, "code_tool goes with run_tools"),
    ],
)
async def test_a_code_tool_that_is_not_there_is_refused(
    serve: Serve, ours: dict[str, object], said: str
) -> None:
    """The error says what to add."""
    server = await serve()
    body = {"messages": [{"role": "user", "content": "x"}], "weftline": ours}
    answer = await server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400 and said in answer.text
