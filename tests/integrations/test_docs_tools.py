"""The programs of docs/tools.md run as they stand, in the client and in the server."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.conftest import served
from tests.integrations.programs import run_here
from weftline_server.commands.tool_tables import McpSpec, factories, from_tables

PAGE = (Path(__file__).parents[2] / "docs" / "tools.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
LANGCHAIN, LLAMA, SDK, MODULE, REQUEST = PROGRAMS
TABLE, MCP, _ = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def called(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>\n"


SCRIPT = [
    ("found Rhine", "Both are long."),
    ("12 EUR", "It costs 12 EUR."),
    ("7 of kettle", "There are seven."),
    ("How many kettles", called("stock", article="kettle")),
    ("kettle", called("price", article="A kettle")),
    ("Danube", called("search", query="Rhine") + called("search", query="Danube")),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("tools")
    (folder / "shop.py").write_text(MODULE)
    (folder / "weftline.toml").write_text(TABLE.replace("/srv/tools", str(folder)))
    rules = [{"when": when, "reply": reply} for when, reply in SCRIPT]
    (folder / "script.json").write_text(json.dumps(rules))
    script = ("--null-mode", "script", "--null-script", str(folder / "script.json"))
    with served("--config", str(folder / "weftline.toml"), *script) as url:
        yield url


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        (LANGCHAIN, "Both are long.\n"),
        (LLAMA, "Both are long.\n"),
        (
            SDK,
            "There are seven.\nuser How many kettles are there?\nassistant None\n"
            "tool 7 of kettle\nassistant There are seven.\n",
        ),
        (REQUEST, "It costs 12 EUR.\nassistant None\ntool A kettle costs 12 EUR\n"),
    ],
    ids=["langchain", "llamaindex", "sdk", "server"],
)
def test_a_program_prints_what_it_should(
    url: str,
    program: str,
    printed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The programs of docs/tools.md run as they stand: both adapters, the SDK and a plain
    request."""
    monkeypatch.setenv("WEFTLINE_BASE_URL", url)
    run_here(program, tmp_path)
    assert capsys.readouterr().out == printed


def test_the_tables_of_mcp_servers_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kinds of connection, with the defaults that the page names."""
    monkeypatch.setenv("SHOP_KEY", "k1")
    tables = tomllib.loads(MCP)["mcp"]
    files, shop = from_tables([], tables)
    assert isinstance(files, McpSpec) and isinstance(shop, McpSpec)
    assert files.command == ("mcp-server-filesystem", "/srv/shared")
    assert (shop.prefix, shop.timeout_s) == ("shop_", 30)
    assert list(factories((files, shop))) == ["mcp:files", "mcp:shop"]
