"""Where prompts part, for a model whose state is kept at few places."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from weftline_engine.remote.prefix_cache.borders import MOST_PROMPTS, Borders
from weftline_engine.remote.prefix_cache.open_prompts import WARM_TOKENS
from weftline_engine.remote.vllm.model_state import has_state

SHARED = tuple(range(1000, 1000 + 2 * WARM_TOKENS))


def borders(*prompts: tuple[int, ...]) -> Borders:
    found = Borders()
    for prompt in prompts:
        found.add(prompt, "")
    return found


def test_siblings_part_at_their_common_beginning() -> None:
    """The first of them fills it. Then the state is kept there."""
    prompts = [(*SHARED, 1, 2), (*SHARED, 3), (*SHARED, 4)]
    found = borders(*prompts)
    assert [found.due(one, "") for one in prompts] == [len(SHARED)] * 3
    found.add(SHARED, "")
    assert [found.due(one, "") for one in prompts] == [0, 0, 0]
    assert [found.kept(one, "") for one in prompts] == [len(SHARED)] * 3


def test_a_next_turn_goes_on_where_the_last_prompt_ended() -> None:
    """Nothing is filled: the state at that place is kept. Neither for a prompt that is alone."""
    assert borders(SHARED).due((*SHARED, *range(50)), "") == 0
    assert borders().due(SHARED, "") == 0
    assert borders((5, *SHARED)).due(SHARED, "") == 0


def test_a_prompt_parts_from_the_answer_of_an_earlier_turn() -> None:
    """A fill of fewer tokens than that is not worth a request."""
    few, many = (*SHARED, *range(100)), (*SHARED, *range(WARM_TOKENS))
    assert borders(SHARED, (*few, 7, 7)).due((*few, 8), "") == 0
    assert borders(SHARED, (*many, 7, 7)).due((*many, 8), "") == len(many)


def test_tenants_share_nothing_and_old_prompts_are_forgotten() -> None:
    """The salts part the cache of vLLM, too."""
    found = borders((*SHARED, 1))
    assert found.due((*SHARED, 2), "other") == 0
    for number in range(MOST_PROMPTS):
        found.add((number,), "")
    assert found.due((*SHARED, 2), "") == 0


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"layer_types": ["conv", "full_attention"]}, True),
        ({"text_config": {"layer_types": ["linear_attention", "full_attention"]}}, True),
        ({"layer_types": ["sliding_attention", "full_attention"]}, False),
        ({"mamba_d_state": 128}, True),
        ({"num_hidden_layers": 2}, False),
    ],
)
def test_a_config_says_whether_there_is_a_state(
    config: dict[str, Any], found: bool, tmp_path: Path
) -> None:
    """Qwen3.5 and LFM2 name the types of their layers, and older models do not."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert has_state(tmp_path) is found
    assert not has_state(tmp_path / "nowhere")
