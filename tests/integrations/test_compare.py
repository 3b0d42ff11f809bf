"""`weftline compare` on programs that newcomers bring: the command, its two processes, a server."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from langchain_weftline import ChatWeftline, accelerate
from weftline.contract.errors import EngineUnavailable

main = pytest.importorskip("weftline_server.cli").main
other_users = pytest.importorskip("weftline_server.commands.other_users").other_users

# One pair at one place: each run of the command starts two processes that import a framework.
SHORT = ("--rtt-ms", "20", "--users", "0", "--turns", "1")

MAP_REDUCE = """
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_openai import ChatOpenAI

    llm = ChatOpenAI(model="gpt-4o", temperature=0, max_tokens=40, base_url="http://nowhere:1/v1")
    each = ChatPromptTemplate.from_template("Sum up: {text}") | llm | StrOutputParser()
    join = ChatPromptTemplate.from_template("Merge: {notes}") | llm | StrOutputParser()
    chain = each.map() | (lambda notes: {"notes": "; ".join(notes)}) | join

    if __name__ == "__main__":
        print(chain.invoke([{"text": "warp"}, {"text": "weft"}]))
"""
QUERIES = """
    import sys
    from llama_index.core import Document, Settings, SummaryIndex
    from llama_index.llms.weftline import Weftline

    Settings.llm = Weftline("gpt-4o", temperature=0, max_tokens=30)
    index = SummaryIndex.from_documents([Document(text=text) for text in sys.argv[1:]])
    print(index.as_query_engine(response_mode="refine").query("What crosses the warp?"))
"""


@pytest.fixture(autouse=True)
def _address(echo_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFTLINE_BASE_URL", echo_url)


def written(folder: Path, program: str) -> str:
    path = folder / "program.py"
    path.write_text(dedent(program))
    return str(path)


def test_a_program_of_chat_openai_is_compared_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names a model and an address that do not exist here: both sides run on the server."""
    assert main(["compare", *SHORT, written(tmp_path, MAP_REDUCE)]) == 0
    head, chain, requests, _, note, heads, row, answers, callbacks, verdict = (
        capsys.readouterr().out.splitlines()
    )
    assert (head, chain) == ("program.py: 3 model calls in a run", "RunnableSequence:")
    assert requests == "    Plain: 3 requests, 2 in a row. Here: 1 request, 1 in a row."
    assert note.startswith("the first run of each side is not counted")
    assert heads.split() == ["plain", "accelerated", "times", "as", "fast", "quartiles"]
    assert row.startswith("20 ms away ")
    assert (answers, callbacks) == ("answers: equal (3)", "callbacks: equal (28)")
    assert verdict.startswith("accelerated: ") and verdict.endswith(" times as fast 20 ms away")


def test_a_program_of_llama_index_is_compared_with_its_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As JSON, a row is one line, and nothing else is printed."""
    program = written(tmp_path, QUERIES)
    assert main(["compare", *SHORT, "--json", program, "The weft.", "The warp."]) == 0
    [row] = capsys.readouterr().out.splitlines()
    found = json.loads(row)
    assert found["place"] == {"rtt_ms": 20.0, "users": 0}
    assert [len(one) for one in found["seconds"].values()] == [1, 1]
    # Two calls in a row are two round trips, and accelerated they are one.
    plain, fast = (one[0] for one in found["seconds"].values())
    assert plain > 0.040 and fast > 0.020


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        (
            "from langchain_openai import ChatOpenAI\nprint(ChatOpenAI(model='x').invoke('hello'))",
            0,
            ["program.py: 1 model call in a run", "nothing to gain: one call"],
        ),
        (
            "import langchain_core\n\nraise ValueError('no such file')",
            1,
            ["weftline: the plain program failed: ValueError: no such file (line 3)"],
        ),
        (
            "import os, langchain_core\nos._exit(3)",
            1,
            ["weftline: the plain program's process ended with exit code 3"],
        ),
    ],
)
def test_what_cannot_gain_is_said(
    program: str, code: int, said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing is measured then."""
    assert main(["compare", *SHORT, written(tmp_path, program)]) == code
    printed = capsys.readouterr().out
    assert all(one in printed for one in said) and "times as fast" not in printed


def test_answers_that_differ_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The prompt has the number of the process, which is not the same on both sides."""
    changed = MAP_REDUCE.replace('"Sum up: {text}"', 'f"{os.getpid()}: {{text}}"')
    changed = "\n    import os" + changed
    assert main(["compare", *SHORT, written(tmp_path, changed)]) == 1
    assert "answers: they differ." in capsys.readouterr().out


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence says how to start one."""
    assert main(["compare", "--base-url", "http://127.0.0.1:1", "program.py"]) == 1
    assert "start one with `weftline serve`" in capsys.readouterr().err


def test_users_beside_the_program(echo_url: str) -> None:
    """They chat as long as the block runs. A server that refuses them is an error."""
    with other_users(echo_url, "default", 2):
        pass
    refused = pytest.raises(EngineUnavailable, match="a user beside the program got no answer")
    with refused, other_users(echo_url, "no such model", 1):
        pass


def test_an_explanation_may_measure(echo_url: str) -> None:
    """The chain runs four times plain, and four times accelerated."""
    runs: list[str] = []

    def noting(text: str) -> dict[str, str]:
        runs.append(text)
        return {"thing": text}

    llm = ChatWeftline(base_url=echo_url, temperature=0, max_tokens=20)
    first = ChatPromptTemplate.from_template("Name {thing}") | llm | StrOutputParser()
    noted = first | (noting) | first
    found = accelerate(noted).explain({"thing": "a town"}, measure=True)
    assert len(runs) == 8 and len(set(runs)) == 1
    assert found.measured is not None and found.measured.plain > 0
    assert f"Measured: {found.measured}." in str(found)
    with pytest.raises(ValueError, match="give the input"):
        accelerate(noted).explain(measure=True)
