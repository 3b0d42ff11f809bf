"""The tools of `weftline bench tools`: they take as long as their calls say."""

from __future__ import annotations

import sqlite3
import time
from typing import Any, ClassVar

from weftline.toolkit import Reject, StreamingTool, tool

LINES = {"delay_s": float, "lines": str}


class _ByLine(StreamingTool):
    """A tool that works `delay_s` seconds for each line."""

    effects = "none"
    timeout_s = 120
    parameters: ClassVar = LINES

    def line(self, name: str, line: str) -> None:
        time.sleep(self.arguments["delay_s"])

    def finish(self) -> str:
        return "done-lines"


class RunCode(_ByLine):
    """Runs each line of code as soon as it is complete."""

    name = "run_code"


class FollowPlan(_ByLine):
    """Follows each line of a plan as soon as it is complete."""

    name = "follow_plan"


class LocalNews(StreamingTool):
    """The news of a place, which has to be 'city, state'."""

    name = "local_news"
    effects = "none"
    parameters: ClassVar = {"location": str, "why": str}

    def argument(self, name: str, value: Any) -> None:
        if name == "location" and "," not in value:
            raise Reject("done-news: location has to be a city and a state")

    def finish(self) -> str:
        return "done-news: none"


@tool(effects="none", timeout_s=120)
def search(query: str, delay_s: float) -> str:
    """Search the web."""
    time.sleep(delay_s)
    return f"done-search of {query[:20]}"


class Database(StreamingTool):
    """Asks a database, to which it connects when the model has written its name."""

    name = "database"
    effects = "none"
    parameters: ClassVar = {"query": str}

    def warm(self) -> None:
        self.connection = sqlite3.connect(":memory:")
        self.connection.execute("CREATE TABLE employees AS SELECT 'Ann' AS name")

    def finish(self) -> str:
        return f"done-database {self.connection.execute(self.arguments['query']).fetchall()}"


@tool(effects="none")
def multiply(a: int, b: int) -> str:
    """Multiply two numbers."""
    return f"done-multiply {a * b}"
