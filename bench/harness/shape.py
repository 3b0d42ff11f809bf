"""Models of random weights for vLLM: a size that people run, with a small model's tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

from bench.harness.texts import ROOT
from tests.random_models import SHAPES, config_of
from weftline.errors import InvalidRequest


def random_model(shape: str, base: Path, folder: Path = ROOT / "out" / "models") -> Path:
    """A directory with the files of `base`, but for the weights, and a config.json of the `shape`.

    `--load-format dummy` fills its matrices with random numbers. Their time is that of real ones.
    The vocabulary is that of the tokenizer of `base`, because an id beyond it has no text.
    Raises InvalidRequest for an unknown shape.
    """
    if shape not in SHAPES:
        raise InvalidRequest(f"there is no shape {shape!r}: there are {', '.join(SHAPES)}")
    of_base = json.loads((base / "config.json").read_text())
    made = folder / f"{shape}-random"
    made.mkdir(parents=True, exist_ok=True)
    for file in base.iterdir():
        link = made / file.name
        if file.suffix != ".safetensors" and file.name != "config.json" and not link.exists():
            link.unlink(missing_ok=True)  # the base was moved
            link.symlink_to(file.resolve())
    (made / "config.json").write_text(json.dumps(config_of(SHAPES[shape], of_base), indent=1))
    return made
