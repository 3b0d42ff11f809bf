"""The SDK over a real socket: semantic functions, streams, and clients that leave."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from tests.waits import wait_until
from weftline import AsyncClient, Client, Output, semantic_function
from weftline.errors import ConnectionFailed, NoProducer, Timeout, UnknownSession
from weftline_server import cli


@semantic_function
def write_code(task, code=Output(max_tokens=24, temperature=0)):  # noqa: B008
    """You are an expert software engineer. Write python code of {{input:task}}.
    Code: {{output:code}}"""


@semantic_function
def write_test(task, code, test=Output(max_tokens=24, temperature=0)):  # noqa: B008
    """You are an experienced QA engineer. You write test code for {{input:task}}.
    Code: {{input:code}}
    Your test code: {{output:test}}"""


def by_hand(url: str, prompt: str) -> str:
    """The answer of the completions endpoint to the same prompt."""
    body = {"prompt": prompt, "max_tokens": 24, "temperature": 0}
    answer = httpx2.post(f"{url}/v1/completions", json=body, timeout=None)
    text: str = answer.json()["choices"][0]["text"]
    return text


def test_figure_7_of_the_paper(model_url: str) -> None:
    """Code and its test, written as one program, equal the answers of the calls made by hand."""
    task = "a snake game"
    with Client(model_url) as client, client.session() as session:
        code = write_code(task)
        test = write_test(task, code)
        answer = test.get("latency")
        assert code.get() == by_hand(
            model_url,
            f"You are an expert software engineer. Write python code of {task}.\nCode: ",
        )
        assert answer == by_hand(
            model_url,
            f"You are an experienced QA engineer. You write test code for {task}.\n"
            f"Code: {code.get()}\nYour test code: ",
        )
        calls = session.graph()["calls"]
        assert [call["name"] for call in calls] == ["write_code", "write_test"]


async def test_the_async_client_streams(model_url: str) -> None:
    """Parts come one by one and together make up the value."""
    async with AsyncClient(model_url) as client, client.session():
        code = write_code("a clock")
        parts = [part async for part in code.stream()]
        assert len(parts) > 3
        assert "".join(parts) == await code


def _shout(words, said):
    """{{input:words}}{{output:said}}"""


def test_a_client_that_goes_away_cancels_its_work(slow_url: str) -> None:
    """A call is cancelled when the only client that waits for it disconnects."""
    with Client(slow_url) as client, client.session() as session:
        semantic_function(_shout)("word " * 400)
        said = session.state.calls[0].placeholders[1].semantic_var_id
        session.flush()
        body = {"session_id": session.id, "semantic_var_id": said}
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.post(f"{slow_url}/v1/get", json=body, timeout=0.3)
        wait_until(lambda: session.graph()["calls"][0]["state"] == "cancelled")


def test_errors_reach_the_caller(slow_url: str) -> None:
    """Each error has the class that the server raised."""
    with Client(slow_url) as client, client.session() as session:
        empty = session.variable()
        said = semantic_function(_shout)(empty)
        with pytest.raises(NoProducer, match="has no value"):
            said.get()
        empty.set("one two three four five six")
        with pytest.raises(Timeout):
            said.get(timeout_s=0.01)
        session.close()
        with pytest.raises(UnknownSession):
            said.get()
    with pytest.raises(ConnectionFailed, match="weftline serve"):
        Client("http://127.0.0.1:9").session()


def test_trace_draws_a_session(
    slow_url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command prints the chart, and writes the picture to a path that is given."""
    monkeypatch.chdir(tmp_path)
    with Client(slow_url) as client, client.session() as session:
        semantic_function(_shout)("one two").get()
        picture = tmp_path / "run.svg"
        command = ["trace", session.id, "--base-url", slow_url, "--output", str(picture)]
        assert cli.main(command) == 0
        assert cli.main(command[:-2]) == 0
        assert list(tmp_path.iterdir()) == [picture]
    said = capsys.readouterr().out
    assert "_shout |" in said and f"picture: {picture}" in said
    assert "_shout" in picture.read_text()
    assert cli.main(["trace", "s_gone", "--base-url", slow_url]) == 1
    assert "no session 's_gone'" in capsys.readouterr().err
