"""How the objects of a JSON body are read: pydantic's configuration of their dataclasses."""

from __future__ import annotations

from typing import Any, ClassVar


class JsonBody:
    """An object of a JSON body. A field that is null is absent, if it may be absent."""

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        made = handler(source)
        if made["type"] == "dataclass":  # pydantic is no dependency of the client: plain dicts
            for field in made["schema"]["fields"]:
                field["schema"] = _or_null(field["schema"])
        return made


class StrictBody(JsonBody):
    """An object whose unknown fields are refused."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "allow_inf_nan": False}


class LooseBody(JsonBody):
    """An object of another API, whose unknown fields are passed over."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "ignore", "allow_inf_nan": False}


def _or_null(schema: Any) -> Any:
    """The schema of a field, which with a default takes null for it."""
    if schema["type"] != "default" or schema["schema"]["type"] in ("nullable", "any"):
        return schema
    factory = schema.get("default_factory")

    def value_of(given: Any) -> Any:
        if given is not None:
            return given
        return schema["default"] if factory is None else factory()

    function = {"type": "no-info", "function": value_of}
    nullable = {"type": "nullable", "schema": schema["schema"]}
    return {
        **schema,
        "schema": {"type": "function-after", "function": function, "schema": nullable},
    }
