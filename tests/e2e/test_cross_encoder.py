"""A cross-encoder as a reranker: a random BERT of two layers, which the test makes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    BertTokenizer,
)

from weftline_engine import api
from weftline_engine.services.retrieval.config import EmbedderConfig
from weftline_engine.transport.process import ProcessEngine

QUERY = "red fox"
TEXTS = ["a red whale", "a blue fox", "a loom", "a red fox and a blue whale"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a classifier of pairs that has one output."""
    folder = tmp_path_factory.mktemp("models") / "judge"
    words = sorted({word for text in (QUERY, *TEXTS) for word in text.split()})
    (folder.parent / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
    )
    BertTokenizer(str(folder.parent / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    small = BertConfig(
        vocab_size=5 + len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, num_labels=1, initializer_range=0.5,
    )  # fmt: skip
    BertForSequenceClassification(small).eval().save_pretrained(folder)
    return folder


async def test_a_cross_encoder_scores_as_the_plain_model_does(model: Path) -> None:
    """Its child announces `rerank` only, with a batch profile that it has measured. The score of
    each pair is the sigmoid of the model's output for it, whatever the batch.
    """
    engine = ProcessEngine(EmbedderConfig(name="judge", model=model))
    described = await engine.start()
    assert described.kinds == ("rerank",)
    sizes, tokens, seconds = zip(*described.batch_profile, strict=True)
    assert sizes == (1, 4, 8, 32) and tokens == (32, 128, 256, 1024)
    assert min(seconds) > 0 and described.efficient_items("rerank") in sizes
    inputs = {"query": QUERY, "texts": TEXTS}
    engine.submit(api.Op(id="r", kind="rerank", context="r", inputs=inputs))
    ended = None
    async with asyncio.timeout(60):
        async for events in engine.events():
            if ended := [one for one in events if isinstance(one, api.Finished)]:
                break
    await engine.close()
    assert ended is not None and isinstance(value := ended[0].value, dict)
    plain = AutoModelForSequenceClassification.from_pretrained(model).eval()
    tokenizer = BertTokenizer.from_pretrained(model)
    with torch.inference_mode():
        wanted = [
            torch.sigmoid(plain(**tokenizer(QUERY, text, return_tensors="pt")).logits).item()
            for text in TEXTS
        ]
    assert value["scores"] == pytest.approx(wanted, abs=1e-5)
    assert len({round(score, 3) for score in wanted}) > 1, "the model tells the texts apart"
