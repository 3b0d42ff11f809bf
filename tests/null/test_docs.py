"""The documentation agrees with the server."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from tests.null.asgi import Serve
from weftline.contract import errors
from weftline_engine.api import Capability
from weftline_engine.remote.llamacpp.engine import capabilities as slots
from weftline_engine.remote.sglang.engine import sglang_capabilities
from weftline_engine.remote.sglang.facts import SGLangFacts
from weftline_engine.remote.vllm.engine import capabilities
from weftline_engine.remote.vllm.means import CHECKED, MEANS
from weftline_engine.remote.vllm.versions import KNOWN
from weftline_server import cli
from weftline_server.commands.engine_spec import from_tables

DOCS = Path(__file__).resolve().parents[2] / "docs"
TESTS = DOCS.parent / "tests"
PAPER = (DOCS / "parrot-paper.md").read_text()
SERVING = (DOCS / "serving.md").read_text()
ENGINES = (DOCS / "engines.md").read_text()


async def test_the_request_that_serving_walks_through(serve: Serve) -> None:
    """The request body in the text runs unchanged. The echo shows how the second prompt
    was made.
    """
    [body] = re.findall(r"    POST /v1/submit\n((?:    .*\n)+)", SERVING)
    server = await serve()
    answer = await server.http.post("/v1/submit", json=json.loads(body))
    draft = "Write a headline about rivers: "
    assert answer.json()["values"] == {"final": f"Shorten: {draft}\nShort: "}


async def test_every_route_of_the_table_is_there(serve: Serve) -> None:
    """The table lists every route of the server and no other."""
    server = await serve()
    shown = set(re.findall(r"`(GET|POST|PUT|DELETE) (/[^`]*)`", SERVING.split("## Routes")[1]))
    names = {"{session_id}": "{id}", "{variable}": "{var}", "{call_id}": "{call}"}
    names |= {"{response_id}": "{id}", "{conversation_id}": "{id}", "{item_id}": "{item}"}
    served = set()
    for path, methods in server.app.openapi()["paths"].items():
        for long, short in names.items():
            path = path.replace(long, short)
        served |= {(method.upper(), path) for method in methods}
    assert {r for r in shown if "Last-Event" not in r[1]} == served


async def test_the_documented_protocol_is_right(serve: Serve) -> None:
    """The page states the protocol's version and the form of an error as the server gives them."""
    server = await serve()
    told = re.search(r"protocol's version is (\w+); `POST /v1/session` names it", SERVING)
    assert told is not None
    assert (await server.http.post("/v1/session")).json()["protocol"] == told.group(1)
    shown = re.search(r'    (\{"error": \{"message"(?:.*\n) .*\}\})', SERVING)
    assert shown is not None
    refused = (await server.http.post("/v1/get", json={"session_id": "s"})).json()["error"]
    assert refused.keys() == json.loads(shown.group(1))["error"].keys()


@pytest.mark.parametrize(
    "line", re.findall(r"^ {4,7}(weftline .*?)(?:  +#.*)?$", SERVING + ENGINES, re.M)
)
def test_commands_are_understood(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command in the documentation parses: with --help added, it prints its usage."""
    with pytest.raises(SystemExit) as ended:
        cli.main([*shlex.split(line)[1:], "--help"])
    assert ended.value.code == 0
    assert "usage: weftline" in capsys.readouterr().out


def test_every_error_is_in_the_table() -> None:
    """Types and statuses equal those of the exceptions. Errors of the client alone are not in the
    table.
    """
    shown = {}
    for names, status in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (\d{3}) \|", SERVING, re.M):
        shown |= {name: int(status) for name in re.findall(r"\w+", names)}
    tree = {n: int(c.status) for n, c in errors._BY_NAME.items()}
    for name in ("WeftlineError", "GraphError", "ConnectionFailed", "ClientFailed", "UnknownRoute"):
        del tree[name]
    assert shown == tree


def test_the_engines_of_the_configuration_file() -> None:
    """The tables in the text configure these engines."""
    text = re.search(r"((?:    .*\n|\n)+)`weftline serve --config", ENGINES)
    assert text is not None
    left, right, hosted = from_tables(tomllib.loads(text.group(1))["engine"])
    assert (left.call_it, right.call_it, hosted.call_it) == ("llama", "llama", "big")
    assert (left.name, right.engine) == ("left", "vllm")
    assert hosted.endpoint.connect_key_env == "EXAMPLE_KEY"


def test_the_table_of_capabilities_is_right() -> None:
    """Each capability has a row, and "yes" and "no" equal the engines' announcements."""
    rows = re.findall(r"^\| `(\w+)`: [^|]* \| (.*) \|$", ENGINES, re.M)
    table = {name: cells.split(" | ") for name, cells in rows}
    assert list(table) == [one.value for one in Capability]
    plain = capabilities(child=True, priority=True, retains=False, reports=True)
    can = [set(Capability), set(plain)]
    can += [set(capabilities(child=False, priority=False, retains=False, reports=False))]
    can += [set(sglang_capabilities(SGLangFacts(), salts=True, reports=False))]
    can += [set(slots(child=True, tokens=True))]
    can += [{Capability.LOGIT_BIAS}, {Capability.SAMPLING, Capability.UPDATES}]
    for column, announced in enumerate(can):
        yes = {name for name, cells in table.items() if cells[column] == "yes"}
        assert yes == {one.value for one in announced}
    assert table["retention"][1] == table["updates"][1] == "with our scheduler"
    scheduled = capabilities(child=True, priority=True, retains=True, reports=True)
    assert set(scheduled) - set(plain) == {Capability.RETENTION, Capability.UPDATES}


def test_the_table_of_vllms_means_is_right() -> None:
    """It has the rows of the code, and our scheduler runs in the versions that the docs name."""
    part = ENGINES[ENGINES.index("| vLLM has |") :]
    rows = [tuple(line.strip("| ").split(" | ")) for line in part.split("\n\n")[0].split("\n")[2:]]
    means = [(one.title, one.inside, one.child, one.connected) for one in MEANS]
    assert rows == means
    assert f"What weftline uses of vLLM {' and '.join(KNOWN)} " in ENGINES
    assert f"vLLM {CHECKED[-1]} has all of it but our scheduler" in ENGINES
    assert CHECKED[: len(KNOWN)] == KNOWN


def test_the_papers_table_names_existing_files() -> None:
    """Every file that the table names exists in the server, the tests or the tree. Sections 4 to 8
    are there.
    """
    rows = re.findall(r"^\| (\d)[^|]*\|[^|]*\|([^|]*)\|([^|]*)\|$", PAPER, re.M)
    assert {section for section, _, _ in rows} == {"4", "5", "7", "8"}
    for _, where, tests in rows:
        for cell, home in ((where, DOCS.parent / "server/weftline_server"), (tests, TESTS)):
            for name in re.findall("`(.*?)`", cell):
                assert [*home.glob(name), *DOCS.parent.glob(name)], name
