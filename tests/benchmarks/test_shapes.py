"""The measurement at the sizes that people run: it goes on where it was stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from bench.harness import machine
from bench.harness.resume import of_these_sources
from bench.micro.shapes import Rates, measure


def test_a_measurement_that_was_stopped_goes_on(tmp_path: Path) -> None:
    """The third run is cut off. The second try runs what is missing, in the same order, and keeps
    what was measured; the third try runs nothing."""
    ran: list[str] = []

    def turn(name: str, fails: bool = False) -> Mapping[str, tuple[float, float]]:
        if fails and len(ran) == 2:
            raise KeyboardInterrupt
        ran.append(name)
        return {"decode 1": (float(len(ran)), 0.5)}

    path = tmp_path / "shapes-qwen3-1.7b.json"
    failing = {name: partial(turn, name, fails=True) for name in ("ours", "theirs")}
    with pytest.raises(KeyboardInterrupt):
        measure(failing, 2, {}, path)
    assert ran == ["theirs", "ours"]

    def goes_on() -> Rates:
        old = of_these_sources(path, machine.describe())
        assert old is not None
        return measure({name: partial(turn, name) for name in failing}, 2, old["rates"], path)

    goes_on()
    assert ran == ["theirs", "ours", "ours", "theirs"]
    rates = goes_on()
    assert ran == ["theirs", "ours", "ours", "theirs"]
    first = [rate for rate, _ in rates["ours"]["decode 1"]]
    assert first == [2.0, 3.0]
    assert json.loads(path.read_text())["rates"]["theirs"]["decode 1"] == [[1.0, 0.5], [4.0, 0.5]]


def test_turns_of_other_sources_are_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A raw file of another commit is said to be taken anew."""
    path = tmp_path / "shapes.json"
    about = {"cpu": "a", "source": "one"}
    assert of_these_sources(path, about) is None
    path.write_text(json.dumps({"machine": about, "rates": {}}))
    assert of_these_sources(path, about) == {"machine": about, "rates": {}}
    assert of_these_sources(path, about | {"source": "two"}) is None
    assert "shapes.json is taken anew" in capsys.readouterr().out
