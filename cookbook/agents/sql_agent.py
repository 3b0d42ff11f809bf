"""An agent that answers questions about a database with SQL. It can only read.

    weftline serve qwen3:1.7b-q4 &
    python cookbook/agents/sql_agent.py "Which loom wove the most metres?"

The model has to be able to call tools. `WEFTLINE_BASE_URL` names another server.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import StructuredTool

from langchain_weftline import ChatWeftline, EarlyTools

QUESTION = "Which loom wove the most metres?"
TABLES = """
CREATE TABLE looms (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE runs (loom INTEGER REFERENCES looms(id), day TEXT, metres REAL);
INSERT INTO looms VALUES (1, 'Ada'), (2, 'Jacquard');
INSERT INTO runs VALUES (1, 'Mon', 41.5), (1, 'Tue', 38.0), (2, 'Mon', 55.0), (2, 'Tue', 12.5);
"""
# All that a statement may do. Writing, ATTACH, PRAGMA and endless recursion are not among it.
ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}
MOST_ROWS = 50  # a longer table would fill the prompt
MOST_S = 2.0  # of one statement


class Database:
    """The tables in memory, open to questions."""

    def __init__(self) -> None:
        # LangChain runs tools in threads. SQLite lets one of them in at a time.
        self._tables = sqlite3.connect(":memory:", check_same_thread=False)
        self._tables.executescript(TABLES)
        found = self._tables.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")
        self.schema = "\n".join(row[0] for row in found)
        self._tables.set_authorizer(self._may)

    def _may(self, action: int, first: str | None, second: str | None, *_: Any) -> int:
        refused = action not in ALLOWED or second == "load_extension"
        return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK

    def query(self, sql: str) -> str:
        """Run one SELECT statement of SQLite, and return its rows."""
        ends = time.monotonic() + MOST_S
        self._tables.set_progress_handler(lambda: time.monotonic() > ends, 10_000)
        try:
            cursor = self._tables.execute(sql)
            rows = cursor.fetchmany(MOST_ROWS)
        except sqlite3.Error as error:
            return f"error: {error}"  # the model reads it, and tries again
        names = [column[0] for column in cursor.description or ()]
        return "\n".join(" | ".join(map(str, row)) for row in [names, *rows])


def main() -> None:
    database = Database()
    agent = create_agent(
        ChatWeftline(temperature=0, max_tokens=400),
        [StructuredTool.from_function(database.query)],
        system_prompt=f"Answer from the database. Its tables:\n{database.schema}",
        middleware=[EarlyTools(["query"])],  # it only reads, so it starts while the model writes
    )
    asked = {"messages": [("user", " ".join(sys.argv[1:]) or QUESTION)]}
    for message in agent.invoke(asked)["messages"][1:]:
        for call in getattr(message, "tool_calls", []):
            print("SQL:", call["args"].get("sql"))
        if message.text:
            print(f"{message.type}: {message.text}")


if __name__ == "__main__":
    main()
