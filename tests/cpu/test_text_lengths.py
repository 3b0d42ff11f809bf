"""Texts that are longer than an embedder takes: MiniLM, with its own tokenizer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weftline_engine import api
from weftline_engine.services.retrieval.core import InputRefused, InputTooLong
from weftline_engine.services.retrieval.embedder import SentenceBackend
from weftline_server.commands.retrieval_tables import MINILM, _directory

LIMIT = 256
LONG = "river " * 300 + "shore"


@pytest.fixture(scope="module")
def backend() -> SentenceBackend:
    return SentenceBackend(_directory(MINILM), "minilm")


def op(kind: str, **inputs: Any) -> api.Op:
    return api.Op(id="x", kind=kind, context="", inputs=inputs)


def test_tokens_are_the_models(backend: SentenceBackend) -> None:
    """They were a fourth of the characters. The two marks of the model count, too."""
    items = backend.items(op("embed", texts=["Hello world!", "river"]))
    assert [one.tokens for one in items] == [5, 3]
    [pair] = backend.items(op("rerank", query="Hello", texts=["Hello world!"]))
    assert pair.tokens == 5  # MaxSim reads both apart, and the longer one must fit


def test_a_long_text_is_refused_or_cut(backend: SentenceBackend) -> None:
    """Cut to what the model takes, its vector is the one that the model made of all of it."""
    assert backend.limit("embed") == LIMIT
    with pytest.raises(InputTooLong) as raised:
        backend.items(op("embed", texts=["river", LONG]))
    assert raised.value.args == (1, 303, LIMIT)
    with pytest.raises(InputTooLong):
        backend.items(op("rerank", query="river", texts=[LONG]))
    [item] = backend.items(op("embed", texts=[LONG], truncate_prompt_tokens=-1))
    assert item.tokens == LIMIT and item.payload == ("river " * (LIMIT - 2)).strip()
    made = backend.compute("embed", [item.payload, LONG])
    np.testing.assert_allclose(made[0], made[1], atol=1e-5)
    [short] = backend.items(op("embed", texts=[LONG], truncate_prompt_tokens=4))
    assert (short.payload, short.tokens) == ("river river", 4)
    with pytest.raises(InputRefused, match="a number up to 256"):
        backend.items(op("embed", texts=[LONG], truncate_prompt_tokens=LIMIT + 1))
