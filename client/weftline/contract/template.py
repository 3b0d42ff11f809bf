"""Reads template text, `... {{input:x}} ... {{output:y}}`, into segments.

The reader gets only text that the author of a function wrote. Values are never scanned, so a value
that holds `{{` stays as it is.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from weftline.contract.errors import UnknownPlaceholder
from weftline.contract.protocol import InOut, Placeholder, Segment

_PLACEHOLDER = re.compile(r"\{\{\s*(input|output)\s*:\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
# Text that looks almost like a placeholder is more likely a mistake than prose.
_SLIP = re.compile(r"\{\{\s*(input|output)\b[^}]{0,80}\}\}")


def parse(text: str) -> tuple[Segment, ...]:
    """The segments of `text`.

    Raises UnknownPlaceholder for `{{input}}`, `{{output:1}}` and the like.
    """
    segments: list[Segment] = []
    end = 0
    for match in _PLACEHOLDER.finditer(text):
        _keep_text(segments, text[end : match.start()])
        kind, name = match.groups()
        segments.append(Segment(input=name) if kind == "input" else Segment(output=name))
        end = match.end()
    _keep_text(segments, text[end:])
    return tuple(segments)


def _keep_text(segments: list[Segment], text: str) -> None:
    slip = _SLIP.search(text)
    if slip:
        raise UnknownPlaceholder(
            f"{slip.group()!r} is not a placeholder: write "
            "{{input:name}} or {{output:name}}",
            param=slip.group(),
        )
    if text:
        segments.append(Segment(text=text))


def from_docstring(text: str) -> tuple[Segment, ...]:
    """The segments of a function's docstring, without indentation and outer blank lines."""
    return parse(textwrap.dedent("    " + text if text[:1] not in " \n" else text).strip())


def check_placeholders(segments: Sequence[Segment], placeholders: tuple[Placeholder, ...]) -> None:
    """Raise UnknownPlaceholder unless prompt and placeholders name the same inputs and outputs.

    Each output must occur once.
    """
    inputs = {s.input for s in segments if s.input is not None}
    outputs = [s.output for s in segments if s.output is not None]
    seen: set[str] = set()
    for name in outputs:
        if name in seen:
            raise UnknownPlaceholder(
                f"output {name!r} occurs twice in the prompt: rename one", param=name
            )
        seen.add(name)
    declared: dict[str, InOut] = {}
    for placeholder in placeholders:
        if placeholder.name in declared:
            raise UnknownPlaceholder(
                f"placeholder {placeholder.name!r} is declared twice", param=placeholder.name
            )
        declared[placeholder.name] = placeholder.in_out
    used = dict.fromkeys(inputs, InOut.IN) | dict.fromkeys(outputs, InOut.OUT)
    if both := inputs & set(outputs):
        name = min(both)
        raise UnknownPlaceholder(f"{name!r} is both an input and an output", param=name)
    for name, in_out in used.items():
        if declared.get(name) is not in_out:
            raise UnknownPlaceholder(
                f"the prompt has {'{{'}{in_out}put:{name}{'}}'}, "
                f"but no placeholder {name!r} with in_out {in_out.value!r} is declared",
                param=name,
            )
    for name in declared:
        if name not in used:
            raise UnknownPlaceholder(f"placeholder {name!r} is missing in the prompt", param=name)
