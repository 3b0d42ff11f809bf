"""The files of cookbook/in_front: a server with keys before an endpoint, and before a vLLM."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import httpx2
import pytest

from tests.integrations.conftest import StartServer
from tests.integrations.forks import fork
from weftline_server.commands.engine_spec import from_tables

FOLDER = Path(__file__).parents[2] / "cookbook" / "in_front"
CHAT = {"model": "default", "messages": [{"role": "user", "content": "Hello"}]}


def test_ollama_with_keys(
    start_script: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file serves another endpoint that speaks OpenAI's API. Only its tenants get answers."""
    endpoint = start_script([("", "Good day.")])
    [model] = httpx2.get(f"{endpoint}/v1/models").json()["data"]
    text = (FOLDER / "ollama.toml").read_text()
    for found, given in (("http://127.0.0.1:11434", endpoint), ("qwen3:1.7b", model["id"])):
        assert found in text
        text = text.replace(found, given)
    file = tmp_path / "weftline.toml"
    file.write_text(text)
    monkeypatch.setenv("ALICE_KEY", "the key of alice")
    monkeypatch.setenv("BOB_KEY", "the key of bob")
    process = fork(["serve", "--port", "0", "--config", str(file)])
    try:
        url = process.said.split()[-1] + "/v1/chat/completions"
        for key in (None, "the key of carol"):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            assert httpx2.post(url, json=CHAT, headers=headers).status_code == 401
        for name in ("alice", "bob"):
            headers = {"Authorization": f"Bearer the key of {name}"}
            answer = httpx2.post(url, json=CHAT, headers=headers, timeout=60).json()
            assert answer["choices"][0]["message"]["content"].strip() == "Good day."
    finally:
        process.kill()
        process.wait()


def test_vllm_with_keys() -> None:
    """The file's settings are settings of a vLLM that runs already, and its keys are variables."""
    tables = tomllib.loads((FOLDER / "vllm.toml").read_text())
    [spec] = from_tables(tables["engine"])
    assert spec.engine == "vllm"
    assert spec.endpoint.connect == "http://127.0.0.1:8000"
    assert spec.endpoint.connect_key_env == "VLLM_API_KEY"
    assert tables["keys"] == {"alice": "$ALICE_KEY", "bob": "$BOB_KEY"}


@pytest.mark.parametrize("name", ["ollama", "vllm"])
def test_the_page_names_the_file_and_its_variables(name: str) -> None:
    """Each variable of a file is set on the page before its server starts."""
    page, file = ((FOLDER / one).read_text() for one in ("README.md", f"{name}.toml"))
    before, _, _ = page.partition(f"weftline serve --config cookbook/in_front/{name}.toml")
    assert before != page
    variables = set(re.findall(r"\b([A-Z]+_(?:API_)?KEY)\b", file))
    assert variables == {name for name in variables if f"{name}=$(" in before}
