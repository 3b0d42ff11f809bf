"""Model calls that end without a readable answer: what stays behind, and what the error says."""

from __future__ import annotations

import json
from pathlib import Path

import openai
import pytest
from langchain_core.prompts import ChatPromptTemplate
from pydantic import BaseModel, ValidationError

from langchain_weftline import ChatWeftline, accelerate
from tests.integrations.conftest import served
from tests.waits import wait_until
from weftline import Client


class Answer(BaseModel):
    text: str


@pytest.mark.parametrize(
    ("reply", "error"),
    [("cut off", openai.LengthFinishReasonError), ("nonsense", ValidationError)],
)
def test_no_session_stays_open(reply: str, error: type[Exception], tmp_path: Path) -> None:
    """The answers are cut off, or are no JSON: nine failures, and no session is left."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"when": "", "reply": reply}]))
    options = ("--null-mode", "script", "--null-script", str(script))
    with served(*options) as url, Client(url) as client:
        model = ChatWeftline(base_url=url, max_tokens=1)
        chain = model.with_structured_output(Answer, method="json_schema")
        for _ in range(9):
            with pytest.raises(error):
                chain.invoke("hi")
        wait_until(lambda: {row["state"] for row in client.sessions()} == {"closed"})
        assert len(client.sessions()) == 9


@pytest.mark.parametrize("compiled", [False, True])
def test_an_unreachable_server_is_named(compiled: bool) -> None:
    """The exception is ChatOpenAI's, and a note below it says where nobody answers."""
    model = ChatWeftline(base_url="http://127.0.0.1:1/v1", max_retries=0)
    chain = ChatPromptTemplate.from_template("{x}") | model
    with pytest.raises(openai.APIConnectionError) as raised:
        (accelerate(chain) if compiled else chain).invoke({"x": "hi"})
    [note] = raised.value.__notes__
    assert note.startswith("no weftline server answers at http://127.0.0.1:1")
    assert note.endswith("start one with `weftline serve`, or set WEFTLINE_BASE_URL")
