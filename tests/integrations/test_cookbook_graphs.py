"""The programs of cookbook/graphs with both of their classes, on a server without a model."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.integrations.conftest import RETRIEVES
from tests.integrations.recording import recorded
from weftline import Client

FOLDER = Path(__file__).parents[2] / "cookbook" / "graphs"
SUBMIT = "/v1/submit"
OPTIONS = RETRIEVES
RULES = [
    ("Write four short questions", "What is one?\nWhat is two?\nWhat is three?\nWhat is four?"),
    ("From these, answer", "All of it."),
    ("What is two", "It is two."),
    ("In one sentence", "It is so."),
    ("numbers or about words", " number"),
    ("Compute", "42"),
    ("teacher", "A word."),
    ("Say GOOD", "Shorter, please."),
    ("Write this sentence again", "Threads cross."),
    ("", "A loom crosses threads."),
]

# The answer; calls that the model gets, and requests, one by one and as a graph. The branch's other
# side starts before the decision, so the graph has one more call.
EXPECTED = {
    "sub_questions": ("All of it.", 11, 1),
    "router": ("42", 2, 1),
    "evaluator": ("Threads cross.", 7, 1),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_program_with_both_classes(name: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives the same answer. One request carries the whole graph."""
    monkeypatch.syspath_prepend(str(FOLDER))
    program, runners = _module(name).run, import_module("runners")
    text, parts, one = EXPECTED[name]
    requests = []
    for runner in runners.CLASSES:
        with recorded(url) as proxy, Client(proxy.url) as client:
            made: Any = runner(client)
            assert made.answer(program).strip() == text
            requests.append(len(proxy.bodies(SUBMIT)))
    assert requests == [parts, one]


def test_the_server_of_the_environment(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program without arguments asks the server that WEFTLINE_BASE_URL names."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("WEFTLINE_BASE_URL", url)
    monkeypatch.setattr("sys.argv", ["router"])
    import_module("runners").main(_module("router").run)
    assert capsys.readouterr().out.split().count("42") == 2


def _module(name: str) -> ModuleType:
    """The program, under a name of its own: cookbook/langchain has programs of the same names."""
    spec = spec_from_file_location(f"graphs_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_program_is_listed() -> None:
    """The page, the folder and this test name the same programs."""
    page = (FOLDER / "README.md").read_text()
    listed = set(re.findall(r"^\| \[(\w+)\.py\]", page, re.MULTILINE))
    assert listed == set(EXPECTED) == {one.stem for one in FOLDER.glob("*.py")} - {"runners"}
