"""The programs of docs/steps.md run as they stand, on an engine that echoes its prompts."""

from __future__ import annotations

import asyncio
import re
import tomllib
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from tests.null.steps.conftest import Listen
from weftline.contract.protocol import SubmitBody
from weftline_server.commands.retrieval_tables import factories, from_tables

SUBMIT: TypeAdapter[SubmitBody] = TypeAdapter(SubmitBody)
PAGE = (Path(__file__).parents[3] / "docs" / "steps.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PRINTED = {
    "def numbered": "Write a text. 1. Name three points about rivers:  \n",
    "def route": "Calculate: What number is six times seven? \n",
    "def split": "['Explain warp. ', 'Explain weft. ']\n",
    "def judge": "Weaving!!!\n",
}


@pytest.mark.parametrize("said", PRINTED)
async def test_a_program_prints_what_it_should(
    said: str, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The programs of docs/steps.md run as they stand, on a server of this test."""
    socket = await listen()
    [program] = [one for one in PROGRAMS if said in one]
    monkeypatch.setattr("weftline.sdk.client.Client", socket.client)
    out = StringIO()

    def run() -> None:
        with redirect_stdout(out):
            exec(compile(program, "docs/steps.md", "exec"), {"__name__": "steps"})  # noqa: S102

    await asyncio.to_thread(run)
    assert out.getvalue() == PRINTED[said]


def test_every_program_is_run() -> None:
    """The page has as many programs as this test knows outputs."""
    assert len(PROGRAMS) == len(PRINTED)


def test_the_settings_are_settings_of_the_server() -> None:
    """The page's TOML tables make the two function engines that it describes."""
    found = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    made = factories(from_tables(tomllib.loads("".join(found))))
    assert list(made) == ["function:count", "function:python"]


def test_the_steps_of_the_page_are_steps_of_a_submit() -> None:
    """The bodies that are left out stand for any call."""
    body = '{"calls": [{"name": "a", "prompt": "{{output:answer}}", "placeholders": []}]}'
    wire = PAGE.replace('{"calls": [...], "steps": [...]}', body).replace("{...}", body)
    steps = re.findall(r'    (\{"kind":(?:.*\n     .*)*.*\})', wire)
    kinds = [one.kind for one in SUBMIT.validate_json(f'{{"steps": [{",".join(steps)}]}}').steps]
    assert kinds == ["text", "client", "function", "agent", "branch", "each", "loop"]
