"""Constraints on outputs in the words of vLLM's `structured_outputs`.

vLLM takes a JSON schema, a pattern or a choice as such. Tool calls it takes as a structural tag of
xgrammar, whose `format` has other names than ours (https://xgrammar.mlc.ai/docs/).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def structured_outputs(constraint: str) -> dict[str, Any]:
    """Return the value of `structured_outputs` for the constraint of an op (api.Sampling)."""
    match json.loads(constraint):
        case {"json_schema": schema}:
            return {"json": schema}
        case {"structural_tag": form}:
            tag = {"type": "structural_tag", "format": _format(form)}
            return {"structural_tag": json.dumps(tag)}
        case dict() as wish:
            return wish
    raise AssertionError(f"the server sends constraints as objects, not {constraint}")


def _format(form: Mapping[str, Any]) -> dict[str, Any]:
    """Tags between free texts, tags alone, or either tags or what is there `otherwise`."""
    body = {
        "tags": [
            {
                "type": "tag",
                "begin": tag["begin"],
                "content": {"type": "json_schema", "json_schema": tag["schema"]},
                "end": tag["end"],
            }
            for tag in form["tags"]
        ],
        "stop_after_first": form.get("stop_after_first", False),
    }
    if (trigger := form.get("trigger")) is not None:
        return {"type": "triggered_tags", "triggers": [trigger], **body}
    separator = form.get("separator", "")
    tags = {"type": "tags_with_separator", "separator": separator, "at_least_one": True, **body}
    if (otherwise := form.get("otherwise")) is None:
        return tags
    return {"type": "or", "elements": [tags, *_others(otherwise)]}


def _others(wish: Mapping[str, Any]) -> list[dict[str, Any]]:
    match wish:
        case {"json_schema": schema}:
            return [{"type": "json_schema", "json_schema": schema}]
        case {"regex": pattern}:
            return [{"type": "regex", "pattern": pattern}]
        case {"choice": texts}:
            return [{"type": "const_string", "value": text} for text in texts]
    raise AssertionError(f"the server sends no such constraint: {wish}")
