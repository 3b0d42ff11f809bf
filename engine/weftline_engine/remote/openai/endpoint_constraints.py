"""Constraints on outputs in the words of the endpoint: OpenAI's, vLLM's or SGLang's.

vLLM and SGLang hold outputs with xgrammar, so their structural tags have the format that ours have.
OpenAI's API has JSON schemas alone.
"""

from __future__ import annotations

import json
from typing import Any

from weftline_engine.api import Constraint
from weftline_engine.own.constraints.ebnf import is_ebnf
from weftline_engine.remote.openai.endpoint import EndpointError
from weftline_engine.remote.openai.scheduling import EndpointScheduler


def kinds(scheduler: EndpointScheduler) -> tuple[Constraint, ...]:
    """The constraints that an endpoint follows. Only by its scheduler do we know whose it is."""
    if scheduler in (EndpointScheduler.VLLM, EndpointScheduler.SGLANG):
        return tuple(Constraint)
    return (Constraint.JSON_SCHEMA,)


def fields(scheduler: EndpointScheduler, constraint: str) -> tuple[dict[str, Any], str, str]:
    """The fields of a request under the constraint of an op (api.Sampling), and the fixed texts
    before and after what the endpoint generates.

    Raises EndpointError for a constraint that the endpoint does not have.
    """
    match scheduler:
        case EndpointScheduler.VLLM:
            return {"structured_outputs": structured_outputs(constraint)}, "", ""
        case EndpointScheduler.SGLANG:
            return _sglang(constraint), "", ""
    schema, begin, end = one_schema(constraint)
    return {"response_format": _response_format(schema)}, begin, end


def structured_outputs(constraint: str) -> dict[str, Any]:
    """Return the value of vLLM's `structured_outputs` for the constraint of an op."""
    match json.loads(constraint):
        case {"json_schema": {"x-guidance": {"whitespace_flexible": False}, **compact}}:
            return {"json": compact, "disable_any_whitespace": True}
        case {"json_schema": schema}:
            return {"json": schema}
        case {"structural_tag": form}:
            return {"structural_tag": json.dumps({"type": "structural_tag", "format": form})}
        case dict() as wish:
            return wish
    raise AssertionError(f"the server sends constraints as objects, not {constraint}")


def _sglang(constraint: str) -> dict[str, Any]:
    match json.loads(constraint):
        case {"json_schema": schema}:
            return {"response_format": _response_format(schema)}
        case {"regex": pattern}:
            return {"regex": pattern}
        case {"choice": texts}:
            words = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
            return {"ebnf": f"root ::= {words}"}
        case {"grammar": text} if is_ebnf(text):
            return {"ebnf": text}
        case {"structural_tag": form}:
            return {"response_format": {"type": "structural_tag", "format": form}}
    raise EndpointError(
        "InvalidRequest", "SGLang reads grammars in EBNF, and this one is not: write it in EBNF"
    )


def sglang_sampling(constraint: str) -> dict[str, Any]:
    """The sampling parameters of SGLang's own /generate under the constraint of an op.

    Raises EndpointError for a grammar in Lark.
    """
    match json.loads(constraint):
        case {"json_schema": schema}:
            return {"json_schema": json.dumps(schema)}
        case {"structural_tag": form}:
            tag = {"type": "structural_tag", "format": form}
            return {"structural_tag": json.dumps(tag)}
    return _sglang(constraint)


def _response_format(schema: Any) -> dict[str, Any]:
    if isinstance(schema, dict):
        # A word to llguidance, which is unknown there.
        schema = {name: value for name, value in schema.items() if name != "x-guidance"}
    body = {"name": "output", "schema": schema, "strict": True}
    return {"type": "json_schema", "json_schema": body}


def one_schema(constraint: str) -> tuple[Any, str, str]:
    """The JSON schema for the endpoint, and the fixed texts before and after the JSON.

    A forced call of one tool is fixed text around its arguments, which are JSON. So the endpoint
    generates only the arguments. Raises EndpointError for a constraint without one JSON schema.
    """
    match json.loads(constraint):
        case {"json_schema": schema}:
            return schema, "", ""
        case {"structural_tag": {"type": "tags_with_separator", "tags": [tag], **others}} if (
            others.get("at_least_one")
        ):
            match tag:
                case {"begin": str(begin), "content": {"json_schema": schema}, "end": str(end)}:
                    return schema, begin, end
    raise EndpointError(
        "InvalidRequest",
        "this engine constrains outputs by one JSON schema, not by a regex, a choice, a grammar or "
        "several tools: force one tool, or ask for JSON in the text",
    )
