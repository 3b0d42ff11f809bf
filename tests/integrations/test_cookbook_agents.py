"""The agents of cookbook/agents, on a server without a model that writes given turns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from cookbook.agents import mcp_agent, sql_agent, supervisor
from tests.integrations.conftest import StartServer

Run = Callable[..., list[str]]
SELECT = "SELECT name FROM looms JOIN runs ON loom = id GROUP BY id ORDER BY sum(metres) DESC"
TEXT = "Looms hold the warp."


def called(*calls: tuple[str, dict[str, Any]]) -> str:
    texts = (json.dumps({"name": name, "arguments": given}) for name, given in calls)
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts)


SQL = [
    ("name\nAda\nJacquard", "It was Ada."),
    ("error: no such column", called(("query", {"sql": SELECT}))),
    ("", called(("query", {"sql": "SELECT loom FROM looms"}))),
]
MCP = [
    ("10 of kettle are ordered", "Seven, and ten are on their way."),
    ("7 of kettle", called(("order", {"article": "kettle", "number": 10}))),
    ("", called(("count", {"article": "kettle"}), ("order", {"article": "lamp"}))),
]
SUPERVISOR = [
    ("4 words", "GOOD"),
    ("Name the worst fault", called(("length", {"text": TEXT}))),
    ("List the points", "The warp."),
    ("Use all points", TEXT),
    ("GOOD", TEXT),
    (TEXT, called(("critic", {"task": TEXT}))),
    ("The warp.", called(("writer", {"task": "Points: the warp"}))),
    ("", called(("planner", {"task": "looms"}), ("planner", {"task": "warps"}))),
]


@pytest.fixture
def run(
    start_script: StartServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Runs a program on a server with these rules, and gives what it prints."""

    def run(main: Callable[[], Any], rules: list[tuple[str, str]]) -> list[str]:
        monkeypatch.setenv("WEFTLINE_BASE_URL", start_script(rules))
        monkeypatch.setattr("sys.argv", ["program"])
        main()
        return capsys.readouterr().out.splitlines()

    return run


def test_the_sql_agent(run: Run) -> None:
    """Its first statement names a column that is not there. The second one answers."""
    assert run(sql_agent.main, SQL) == [
        "SQL: SELECT loom FROM looms",
        "tool: error: no such column: loom",
        f"SQL: {SELECT}",
        "tool: name",
        "Ada",
        "Jacquard",
        "ai: It was Ada.",
    ]


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("DELETE FROM looms", "error: not authorized"),
        ("PRAGMA query_only = OFF", "error: not authorized"),
        ("ATTACH '/tmp/other.db' AS other", "error: not authorized"),
        ("SELECT load_extension('other')", "error: not authorized to use function: load_extension"),
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT * FROM n", None),
        ("SELECT 1; DELETE FROM looms", "error: You can only execute one statement at a time."),
        ("", ""),
    ],
)
def test_a_statement_that_does_more_than_read(sql: str, says: str | None) -> None:
    """It is refused, and the tables are as they were."""
    database = sql_agent.Database()
    said = database.query(sql)
    assert said == says if says is not None else said.startswith("error: not authorized")
    assert database.query("SELECT count(*) AS n FROM looms") == "n\n2"


def test_a_long_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table has 50 rows at most, and a statement that runs for too long ends."""
    database = sql_agent.Database()
    rows = ", ".join(f"runs r{number}" for number in range(16))
    assert len(database.query(f"SELECT 1 FROM {rows}").splitlines()) == 51
    monkeypatch.setattr(sql_agent, "MOST_S", 0.05)
    assert database.query(f"SELECT sum(r0.metres) FROM {rows}") == "error: interrupted"


def test_the_mcp_agent(run: Run) -> None:
    """A tool that reads and one that orders. The model reads what was wrong with a call."""

    def main() -> None:
        print(asyncio.run(mcp_agent.answer(mcp_agent.QUESTION)))

    first, *rest, ordered, last = run(main, MCP)
    assert first == "count (success): 7 of kettle"
    assert rest[0].startswith("order (error): ") and any("number" in line for line in rest)
    assert ordered == "order (success): 10 of kettle are ordered"
    assert last == "Seven, and ten are on their way."


def test_the_supervisor(run: Run) -> None:
    """It asks the planner twice in one turn, then the writer and the critic, who counts words."""
    assert run(supervisor.main, SUPERVISOR) == [
        "supervisor asks planner: looms",
        "supervisor asks planner: warps",
        "planner answers: The warp.",
        "planner answers: The warp.",
        "supervisor asks writer: Points: the warp",
        f"writer answers: {TEXT}",
        f"supervisor asks critic: {TEXT}",
        "critic answers: GOOD",
        f"supervisor: {TEXT}",
    ]
