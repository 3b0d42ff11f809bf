"""Gives a model another chat template, the same one for every server."""

from __future__ import annotations

import hashlib
from pathlib import Path

from bench.harness.texts import ROOT

TEMPLATE = "chat_template.jinja"


def with_template(model: Path, template: str, folder: Path = ROOT / "out" / "models") -> Path:
    """A directory of the same name and files as `model`, but for its chat template.

    All servers read it from there: vLLM renders its prompts by the template of its model, and so
    does weftline.
    """
    copy = folder / hashlib.sha256(template.encode()).hexdigest()[:12] / model.name
    copy.mkdir(parents=True, exist_ok=True)
    for file in model.iterdir():
        link = copy / file.name
        if file.name != TEMPLATE and not link.exists():
            link.unlink(missing_ok=True)  # the model was moved
            link.symlink_to(file.resolve())
    (copy / TEMPLATE).write_text(template, encoding="utf-8")
    return copy
