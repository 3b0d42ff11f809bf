"""Where prompts part, for a model whose state is kept at few places."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from weftline_engine.remote.prefix_cache.borders import (
    MOST_BORDERS,
    MOST_PROMPTS,
    Border,
    Borders,
)
from weftline_engine.remote.prefix_cache.open_prompts import WARM_TOKENS
from weftline_engine.remote.vllm.few_places import goes_on_at_few_places
from weftline_engine.remote.vllm.state_stops import MOST_STOPS, StateStops

BLOCK = 32
SHARED = tuple(range(1000, 1000 + 2 * WARM_TOKENS))


def borders(*prompts: tuple[int, ...]) -> Borders:
    found = Borders(BLOCK)
    for prompt in prompts:
        found.add(prompt, "")
    return found


def test_siblings_part_at_the_last_block_that_they_have_in_common() -> None:
    """A prompt that ends with one token more keeps the state there."""
    common, own = (*SHARED, 7), range(BLOCK)
    prompts = [(*common, 1, *own), (*common, 2, *own), (*common, 3, *own)]
    found = borders(*prompts)
    assert [found.of(one, "") for one in prompts] == [[Border(len(SHARED), False)]] * 3
    found.add(common, "")
    assert [found.of(one, "") for one in prompts] == [[Border(len(SHARED), True)]] * 3


def test_a_prompt_has_a_border_for_each_level_of_a_tree() -> None:
    """The shortest comes first. Of two that are near each other only the first counts."""
    more = (*SHARED, *range(WARM_TOKENS))
    near = (*SHARED, *range(BLOCK), 2)
    found = borders((*more, 1), near, (*SHARED, 3))
    assert [one.end for one in found.of((*more, 4), "")] == [len(SHARED), len(more)]
    assert [one.end for one in found.of((*SHARED, 5), "")] == [len(SHARED)]


def test_a_short_own_part_ends_in_the_block_of_the_border() -> None:
    """Such a prompt keeps the state at the border by itself."""
    assert borders((*SHARED, 1, 2)).of((*SHARED, 3), "") == [Border(len(SHARED), True)]


def test_a_next_turn_goes_on_where_the_last_prompt_ended() -> None:
    """Nothing is to be kept: the state at that place is. Neither for a prompt that is alone."""
    assert borders(SHARED).of((*SHARED, *range(50)), "") == []
    assert borders().of(SHARED, "") == []
    assert borders((5, *SHARED)).of(SHARED, "") == []


def test_a_long_conversation_has_few_borders() -> None:
    """Each turn parts from the one before it, because its thoughts are left out later. The last
    turns count."""
    turns = [tuple(range(WARM_TOKENS * turn)) for turn in range(1, 2 * MOST_BORDERS)]
    found = borders(*((*turn, -1, *range(BLOCK)) for turn in turns))
    ends = [border.end for border in found.of((*turns[-1], -2), "")]
    assert ends == [len(turn) for turn in turns[-MOST_BORDERS:]]


def test_tenants_share_nothing_and_old_prompts_are_forgotten() -> None:
    """The salts part the cache of vLLM, too."""
    found = borders((*SHARED, 1, *range(BLOCK)))
    assert found.of((*SHARED, 2), "") and not found.of((*SHARED, 2), "other")
    for number in range(MOST_PROMPTS):
        found.add((number,), "")
    assert found.of((*SHARED, 2), "") == []


def test_a_prompts_parts_end_at_its_borders() -> None:
    """One after the other, in whole blocks, and where vLLM itself ends one."""
    stops = StateStops(BLOCK)
    stops.add("mine", [5 * BLOCK + 3, 2 * BLOCK, BLOCK - 1, "7", *[9 * BLOCK] * MOST_STOPS, 8000])
    assert stops.next("mine", 0, boundary=3 * BLOCK) == 2 * BLOCK
    assert stops.next("mine", 2 * BLOCK, boundary=2 * BLOCK) == 3 * BLOCK
    assert stops.next("mine", 3 * BLOCK, boundary=3 * BLOCK) == 5 * BLOCK
    assert stops.next("mine", 5 * BLOCK, boundary=5 * BLOCK) == 9 * BLOCK
    assert stops.next("mine", 9 * BLOCK, boundary=9 * BLOCK) == 0
    stops.end("mine")
    stops.add("other's", None)
    assert stops.next("other's", 0, boundary=BLOCK) == BLOCK and len(stops) == 0


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"layer_types": ["conv", "full_attention"]}, True),
        ({"text_config": {"layer_types": ["linear_attention", "full_attention"]}}, True),
        ({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}, True),
        ({"layer_types": ["chunked_attention", "full_attention"]}, False),
        ({"layer_types": ["full_attention"], "sliding_window": 9}, False),
        ({"text_config": {"sliding_window": 1024, "max_position_embeddings": 131_072}}, True),
        ({"sliding_window": 262_144, "max_position_embeddings": 131_072}, False),
        ({"sliding_window": 9, "use_sliding_window": False}, False),
        ({"mamba_d_state": 128}, True),
        ({"num_hidden_layers": 2}, False),
    ],
)
def test_a_config_says_whether_vllm_goes_on_at_few_places(
    config: dict[str, Any], found: bool, tmp_path: Path
) -> None:
    """Qwen3.5, LFM2 and gpt-oss name the types of their layers, and older models do not. A window
    that no prompt is longer than is none."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert goes_on_at_few_places(tmp_path) is found
    assert not goes_on_at_few_places(tmp_path / "nowhere")
