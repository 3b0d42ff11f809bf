"""The load of the engine comparison: what it does where random weights write no text."""

from __future__ import annotations

from typing import Any

import pytest

from bench.micro._engine_load import NoText, measured

PROMPTS: Any = None  # the measures here send nothing


def test_a_burst_with_an_answer_without_text_is_measured_again() -> None:
    """Three such bursts are followed by another one. The fourth is an error."""
    found = [NoText(), NoText(), NoText(), 5.0]

    def measure(port: int, prompts: Any) -> float:
        one = found.pop(0)
        if isinstance(one, NoText):
            raise one
        return one

    assert measured(measure, 1, PROMPTS) == 5.0
    found[:] = [NoText()] * 4
    with pytest.raises(NoText):
        measured(measure, 1, PROMPTS)
    assert found == []
