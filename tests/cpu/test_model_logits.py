"""Our forward pass equals that of transformers on tiny random models, at every position."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    SiglipVisionConfig,
)

from tests.families import FAMILIES, ROPES
from tests.variants import load_model, prefill
from weftline_engine.own.embedded.model.base import StepInput
from weftline_kernels.work_list import SequenceRows, build

TINY: dict[str, Any] = {}
SHAPES = [
    pytest.param(TINY, id="grouped-query, untied head"),
    pytest.param({"tie_word_embeddings": True, "num_key_value_heads": 1}, id="tied head"),
    pytest.param({"num_key_value_heads": 4, "head_dim": 32}, id="wide heads, no groups"),
    *(pytest.param(changes, id=name) for name, changes in ROPES.items()),
    *(pytest.param(changes, id=name) for name, changes in FAMILIES.items()),
]


@pytest.mark.parametrize("changes", SHAPES)
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-4), (torch.float64, 1e-4)])
def test_logits_equal_transformers(
    changes: dict[str, Any],
    dtype: torch.dtype,
    atol: float,
    tiny_llama: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """One prompt of 75 tokens lies on blocks in reverse order.

    The tolerance is that of float32 even in float64, because the reference always normalises in
    float32.
    """
    tiny_llama(tmp_path, **changes)
    tokens = torch.randint(0, 256, (75,), generator=torch.Generator().manual_seed(1))
    reference = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=dtype, attn_implementation="eager", experts_implementation="eager"
    )
    with torch.inference_mode():
        expected = reference(tokens[None]).logits[0]
    decoder = load_model(tmp_path, dtype)
    assert float(expected.std()) > 0.5, "random weights that say too little"
    cache = decoder.new_cache(8, 16)
    blocks = np.arange(7, -1, -1)
    slots = blocks[np.arange(75) // 16] * 16 + np.arange(75) % 16
    work = build([SequenceRows(blocks.tolist(), 0, 75, 0)], 16)
    step = StepInput(tokens.numpy(), np.arange(75), slots, np.arange(75), work)
    found = torch.from_numpy(decoder.forward(step, cache))
    torch.testing.assert_close(found, expected, atol=atol, rtol=1e-5)


def test_the_text_of_gemma_3_is_read_out_of_a_model_of_images(
    tiny_llama: Callable[..., Path], tmp_path: Path
) -> None:
    """Its checkpoint holds a tower for images, too, and its names tell the parts from each other.

    The text model gives the logits that the whole model gives for text.
    """
    tiny_llama(tmp_path)  # a tokenizer
    text = Gemma3TextConfig(
        vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=3, head_dim=16,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        sliding_window=20, query_pre_attn_scalar=24, initializer_range=0.1,
    )  # fmt: skip
    vision = SiglipVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        image_size=28, patch_size=14,
    )  # fmt: skip
    torch.manual_seed(0)
    whole = Gemma3ForConditionalGeneration(
        Gemma3Config(
            text_config=text,
            vision_config=vision,
            mm_tokens_per_image=4,
            image_token_index=255,
            boi_token_index=254,
            eoi_token_index=253,
        )
    ).eval()
    whole.save_pretrained(tmp_path)
    tokens = torch.randint(0, 250, (75,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = whole(tokens[None]).logits[0]
    decoder = load_model(tmp_path, torch.float32)
    torch.testing.assert_close(prefill(decoder, tokens, [75]), expected, atol=1e-4, rtol=1e-5)
