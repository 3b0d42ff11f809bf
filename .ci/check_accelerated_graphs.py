"""Runs LangGraph's own tests and those of LangChain's agents with every graph accelerated.

A test that fails then must fail without acceleration, too: some do, for their expectations are of
other versions. Only those that fail twice run without it, so that a busy machine makes no fault.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from published_suite import Outcome, Suite, listed

_TOOLS = ("blockbuster>=1.5.18,<1.6", "forbiddenfruit", "pytest-mock>=3.10,<4")
# The tests' settings import the clients of databases, whose tests need Docker and are left out.
GRAPHS = Suite(
    "langgraph",
    "tests",
    tools=(*_TOOLS, "langgraph-checkpoint-postgres>=3,<4", "pycryptodome>=3.23,<5", "redis>=5,<9"),
    environment=(("NO_DOCKER", "true"),),
)
AGENTS = Suite(
    "langchain",
    "tests/unit_tests/agents",
    tools=(*_TOOLS, "langgraph-checkpoint-postgres>=3,<4", "toml"),
)
# About nine tenths of what passes today, so that a suite that cannot be collected is seen.
LEAST = {GRAPHS: 2600, AGENTS: 1000}
_ACCELERATED = ("-p", "every_graph")
_LAST_FAILED = ("--last-failed", "--last-failed-no-failures=none")
_LIMIT = "--timeout=60"  # of a test


@dataclass(frozen=True)
class Finding:
    """What a suite did with every graph accelerated, and which tests failed by that."""

    outcome: Outcome
    faults: tuple[str, ...]


def main() -> int:
    """Exit code 0 if both suites ran and no test fails by acceleration."""
    with ThreadPoolExecutor(len(LEAST)) as pool:
        findings = dict(zip(LEAST, pool.map(_finding, LEAST), strict=True))
    wrong = False
    for suite, found in findings.items():
        outcome = found.outcome
        print(
            f"{suite.package} with {outcome.counted.get('graphs', 0)} graphs accelerated: "
            f"{outcome.passed} passed, {len(outcome.failed)} failed"
        )
        print("failed by acceleration:", listed(found.faults))
        ran = outcome.passed >= LEAST[suite] and outcome.counted.get("graphs", 0) > 0
        wrong = wrong or not ran or bool(found.faults)
    return int(wrong)


def _finding(suite: Suite) -> Finding:
    suite.fetch()
    first = suite.run("accelerated", _LIMIT, *_ACCELERATED)
    again = suite.run("accelerated-again", _LIMIT, *_LAST_FAILED, *_ACCELERATED)
    plain = suite.run("plain", _LIMIT, *_LAST_FAILED)
    return Finding(first, tuple(sorted(again.failed - plain.failed)))


if __name__ == "__main__":
    sys.exit(main())
