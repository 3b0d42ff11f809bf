"""The ten programs of `weftline bench langchain` make the calls that the table says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.micro._programs import PROGRAMS, Program
from bench.micro.langchain import PLAIN, WAYS, rounds, row
from tests.integrations.recording import Recording, recorded


@pytest.fixture(scope="module")
def proxy(echo_url: str) -> Iterator[Recording]:
    with recorded(echo_url) as recording:
        yield recording


@pytest.mark.parametrize("program", PROGRAMS, ids=[one.name for one in PROGRAMS])
def test_a_program(program: Program, proxy: Recording) -> None:
    """The plain one makes a request for each call, and all ways give the same."""
    plain = PLAIN.chain(program, proxy.url)
    proxy.requests.clear()
    expected = str(plain.invoke(program.given))
    assert sum(verb == "POST" for verb, _, _ in proxy.requests) == program.calls
    for way in WAYS[1:]:
        assert str(way.chain(program, proxy.url).invoke(program.given)) == expected


def test_a_row(echo_url: str) -> None:
    """Ratios are of runs in the same round."""
    times = {"ChatOpenAI": [2.0, 4.0], "ChatWeftline": [2.0, 2.0]}
    times |= {"accelerated": [1.0, 1.0]}
    assert row(PROGRAMS[1], 0.25, times) == (
        "| joke and critique | 250 | 2 / 2 | 3000 | 1.50 (1.25 to 1.75) | 3.00 (2.50 to 3.50) |"
    )
    assert {name: len(found) for name, found in rounds(PROGRAMS[0], echo_url, 2).items()} == {
        way.name: 2 for way in WAYS
    }
