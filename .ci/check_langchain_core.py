"""Runs langchain-core's own unit tests without and with a ChatWeftline alive: the same must fail.

Some fail by themselves, for they pin versions of other packages. With the hook on one more may,
which counts handlers.
"""

from __future__ import annotations

import sys

from published_suite import Suite, listed

SUITE = Suite(
    "langchain-core",
    "tests/unit_tests",
    tools=(
        "blockbuster>=1.5.18,<1.6",
        "forbiddenfruit",
        "freezegun>=1.2.2,<2",
        "grandalf>=0.8,<1",
        "pyparsing",
        "pytest-mock>=3.10,<4",
        "responses>=0.25,<1",
    ),
)
COUNTS_HANDLERS = "test_merge_config_callbacks"


def main() -> int:
    """Exit code 0 if the hook makes no test fail but the one that counts handlers."""
    SUITE.fetch()
    without, with_ = SUITE.run("without"), SUITE.run("with", "-p", "weftline_alive")
    for name, outcome in (("without", without), ("with", with_)):
        print(f"{name} a ChatWeftline: {outcome.passed} passed, {len(outcome.failed)} failed")
    print("failed without:", listed(sorted(without.failed)))
    more = sorted(with_.failed - without.failed)
    print("failed with it only:", listed(more))
    return int(any(COUNTS_HANDLERS not in test for test in more))


if __name__ == "__main__":
    sys.exit(main())
