"""Measures how far the logits of bfloat16 and int8 are from those of float32, on English texts.

    python -m bench.micro.precision [--model DIRECTORY] [--tokens 2000]

Every model gets the same tokens and predicts each from those before it. It prints the mean and the
99th percentile of the KL divergence from float32's distribution in nats, how often the likeliest
token is the same, and the perplexity.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from bench.harness.texts import ROOT
from weftline_engine.embedded.model.base import Model, StepInput
from weftline_engine.embedded.model.decoders import load_decoder
from weftline_engine.models import DEFAULT_MODEL, resolve
from weftline_engine.models.cache import default_home
from weftline_kernels.work_list import Rows, build

BLOCK = 16
WINDOW = 500  # tokens of a text


def main() -> None:
    """Print how far the predictions in each precision are from those in float32."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--tokens", type=int, default=2000)
    options = parser.parse_args()
    directory = resolve(options.model)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    words = " ".join(path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    tokens = torch.tensor(tokenizer.encode(words).ids[: options.tokens])
    texts = [one for one in tokens.split(WINDOW) if len(one) == WINDOW]
    exact: list[Tensor] = []
    print("              KL mean    KL p99   same best   perplexity")
    for dtype in ("float32", "bfloat16", "int8"):
        decoder = load_decoder(directory, dtype, BLOCK, default_home() / "kernels")
        found = [predictions(decoder, text) for text in texts]
        exact = exact or found
        pairs = list(zip(exact, found, strict=True))
        divergence = torch.cat([(p.exp() * (p - q)).sum(-1) for p, q in pairs])
        same = torch.cat([(p.argmax(-1) == q.argmax(-1)).float() for p, q in pairs])
        surprise = torch.cat(
            [-q[:-1].gather(1, text[1:, None]) for q, text in zip(found, texts, strict=True)]
        )
        print(
            f"{dtype:10}{float(divergence.mean()):11.5f}{float(divergence.quantile(0.99)):10.5f}"
            f"{float(same.mean()):12.2%}{float(surprise.mean().exp()):13.3f}",
            flush=True,
        )


@torch.inference_mode()
def predictions(decoder: Model, tokens: Tensor) -> Tensor:
    """The log probabilities (T, V) of what follows each token of a text."""
    blocks = list(range(-(-len(tokens) // BLOCK)))
    every = torch.arange(len(tokens))
    work = build([Rows(blocks, 0, len(tokens), 0)], BLOCK)
    step = StepInput(tokens, every, torch.from_numpy(np.arange(len(tokens))), every, work)
    return decoder.forward(step, decoder.new_cache(len(blocks), BLOCK)).log_softmax(-1)


if __name__ == "__main__":
    main()
