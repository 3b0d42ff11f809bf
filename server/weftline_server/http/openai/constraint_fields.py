"""The fields by which clients of OpenAI, vLLM, SGLang and llama.cpp ask for a form of the answer.

All of them become the constraint of a call's output. A request has at most one of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, Literal

from weftline.contract.bodies import LooseBody, StrictBody
from weftline.contract.constraints import check_constraint
from weftline.contract.errors import InvalidRequest
from weftline.contract.parameters import COMMON, CommonSampling

_ANY_OBJECT = {"type": "object"}
# How a schema says to llguidance that its values have no white space between their parts.
COMPACT = {"x-guidance": {"whitespace_flexible": False}}


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonSchema(LooseBody):
    """The schema of a `response_format`."""

    schema: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFormat(LooseBody):
    """The form that the answer must have. A schema is enforced even if it is not strict.

    `pattern`, `regex` or `value` is the pattern of type regex. `grammar` or `value` is the text of
    type grammar, in EBNF or Lark. Type structural_tag has a `format`, or `structures` and
    `triggers`. Type json_object may have a `schema`, or a json_schema: ChatWeftline sends one.
    """

    type: Literal["text", "json_object", "json_schema", "regex", "grammar", "structural_tag"]
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None
    pattern: str | None = None
    regex: str | None = None
    grammar: str | None = None
    value: str | None = None
    format: dict[str, Any] | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None
    at_least_one: bool = False

    def __post_init__(self) -> None:
        if (made := self.constraint) is not None:
            check_constraint(made, "response_format")

    @property
    def constraint(self) -> dict[str, Any] | None:
        """The constraint of the output in a call's sampling; None for plain text."""
        match self.type:
            case "text":
                return None
            case "json_object":
                if self.schema is None and self.json_schema is not None:
                    return {"json_schema": self.json_schema.schema}
                return {"json_schema": _ANY_OBJECT if self.schema is None else self.schema}
            case "json_schema":
                if self.json_schema is None:
                    raise _lacks("its json_schema")
                return {"json_schema": self.json_schema.schema}
            case "regex":
                return {"regex": self._one("pattern", "regex", "value")}
            case "grammar":
                return {"grammar": self._one("grammar", "value")}
            case "structural_tag":
                return {"structural_tag": self._tag()}

    def _one(self, *names: str) -> str:
        """The text that stands in one of these fields."""
        given = [text for name in names if (text := getattr(self, name)) is not None]
        if len(given) != 1:
            raise _lacks(f"one of {', '.join(names)}")
        return str(given[0])

    def _tag(self) -> dict[str, Any]:
        if self.format is not None:
            return {"format": self.format}
        if self.structures is None or self.triggers is None:
            raise _lacks("a format, or structures and triggers")
        return {
            "structures": self.structures,
            "triggers": self.triggers,
            "at_least_one": self.at_least_one,
        }


def _lacks(what: str) -> InvalidRequest:
    return InvalidRequest(f"response_format needs {what}", param="response_format")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs(StrictBody):
    """vLLM's object of constraints, of which one is given.

    Our own engine writes JSON on one line anyway. `disable_any_whitespace` asks a vLLM for it.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        if self.disable_additional_properties:
            raise _refused("structured_outputs.disable_additional_properties")
        if self.whitespace_pattern is not None:
            raise _refused("structured_outputs.whitespace_pattern")

    @property
    def constraint(self) -> dict[str, Any]:
        """The constraint of the output in a call's sampling."""
        param = "structured_outputs"
        given: list[dict[str, Any]] = []
        if self.json is not None:
            given.append({"json_schema": _object(self.json, f"{param}.json")})
        if self.regex is not None:
            given.append({"regex": self.regex})
        if self.choice is not None:
            given.append({"choice": self.choice})
        if self.grammar is not None:
            given.append({"grammar": self.grammar})
        if self.json_object:
            given.append({"json_schema": _ANY_OBJECT})
        if self.structural_tag is not None:
            tag = _object(self.structural_tag, f"{param}.structural_tag")
            given.append({"structural_tag": tag})
        if len(given) != 1:
            raise InvalidRequest(
                "structured_outputs needs one of json, regex, choice, grammar, json_object and "
                f"structural_tag, and this has {len(given)}",
                param=param,
            )
        schema = given[0].get("json_schema")
        if self.disable_any_whitespace and schema is not None:
            return {"json_schema": {**COMPACT, **schema}}
        return given[0]


def _refused(name: str) -> InvalidRequest:
    return InvalidRequest(f"{name} is not served: leave it out", param=name)


def _object(value: str | dict[str, Any], param: str) -> dict[str, Any]:
    """A JSON object that may stand in a text."""
    if isinstance(value, dict):
        return value
    try:
        read = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{param} is not JSON: {error}", param=param) from error
    if not isinstance(read, dict):
        raise InvalidRequest(f"{param} is not a JSON object", param=param)
    return read


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintFields(CommonSampling, LooseBody):
    """All fields that constrain the answer, behind the common parameters. `constraint` is ours."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None
    constraint: dict[str, Any] | None = None

    def constraint_asked(self) -> tuple[str, dict[str, Any]] | None:
        """The field that constrains the answer, and the constraint; None for a free answer.

        Raises InvalidRequest, which names a field, if there are several, or if one is wrong.
        """
        found = [(name, made) for name, made in self._given() if made is not None]
        if not found:
            return None
        if len(found) > 1:
            (first, _), (second, _), *_ = found
            raise InvalidRequest(
                f"{first} and {second} exclude one another: give one", param=second
            )
        name, made = found[0]
        check_constraint(made, name)
        return name, made

    def _given(self) -> list[tuple[str, dict[str, Any] | None]]:
        """The fields that are there, and the constraint of each: None for plain text."""
        made: list[tuple[str, dict[str, Any] | None]] = []
        for name in _FORMS:
            value = getattr(self, name)
            if value is None:
                continue
            match name:
                case "response_format" | "structured_outputs":
                    made.append((name, value.constraint))
                case "guided_json" | "json_schema":
                    made.append((name, {"json_schema": _object(value, name)}))
                case "guided_regex" | "regex":
                    made.append((name, {"regex": value}))
                case "guided_choice":
                    made.append((name, {"choice": value}))
                case "guided_grammar" | "ebnf" | "grammar":
                    made.append((name, {"grammar": value}))
                case "constraint":
                    made.append((name, value))
        return made


_FORMS = tuple(one.name for one in fields(ConstraintFields) if one.name not in COMMON)
