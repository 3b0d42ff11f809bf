"""The fields of pydantic objects whose values are certainly the values in the answer's JSON.

Pydantic may change a value: it turns "5" into 5 for an `int`, and a validator may do anything. A
field counts here only if every value that pydantic accepts for it stays as it is. The class's core
schema says so, because validation follows that schema alone. The client still makes the whole
object, so that a value that pydantic refuses is the plain chain's error.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from langchain_weftline.lower.symbols import CannotCompile, Ref, Spec
from weftline.contract import transforms
from weftline.errors import InvalidRequest

Schema = Mapping[str, Any]

# Types of core schemas without code of the user.
_NO_CODE = frozenset(
    {"any", "bool", "date", "datetime", "decimal", "default", "definition-ref", "definitions"}
    | {"dict", "enum", "float", "int", "list", "literal", "model", "model-field", "model-fields"}
    | {"none", "nullable", "set", "str", "time", "timedelta", "tuple", "union", "url", "uuid"}
)
# What a class may set in its `model_config`. Other settings may change texts or defaults.
_CONFIG = frozenset(
    {"extra_fields_behavior", "frozen", "hide_input_in_errors", "loc_by_alias", "strict", "title"}
    | {"str_max_length", "str_min_length", "validate_by_alias", "validate_by_name"}
)
_ALIASES = frozenset({"validate_by_alias", "validate_by_name", "populate_by_name"})
_MODEL_FIELDS = frozenset(
    {"computed_fields", "extra_behavior", "fields", "metadata", "model_name", "ref", "type"}
)
# Methods by which a class would make or read its objects in a way of its own.
_METHODS = ("__getattr__", "__getattribute__", "__init__", "__new__")
_OWN_WAYS = (*_METHODS, "model_validate", "model_validate_json")
_FACTORIES = (list, dict, set, tuple, str, int, float, bool)

# The options that say what a schema accepts, and change nothing.
_BESIDE = frozenset({"type", "ref", "metadata", "serialization", "strict"})
_TEXT = _BESIDE | {"min_length", "max_length", "pattern", "regex_engine"}
_NUMBER = _BESIDE | {"gt", "ge", "lt", "le", "multiple_of"}
_LIST = _BESIDE | {"items_schema", "min_length", "max_length", "fail_fast"}
_DEFAULT = _BESIDE | {"schema", "default"}


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """The shape of an object of the class `cls`, or of a list of objects.

    `data` are the transforms that find its JSON in the answer.
    """

    cls: type[Any]
    data: tuple[Spec, ...]
    schema: Schema = field(compare=False, repr=False)
    definitions: Mapping[str, Schema] = field(compare=False, repr=False)
    is_strict: bool = field(default=False, compare=False, repr=False)

    def has(self, name: str) -> bool:
        """Whether an object has this field."""
        schema = self._resolved(self.schema)
        return schema["type"] == "model" and name in schema["schema"]["fields"]

    def attribute(self, owner: Ref, name: str, step: object) -> Ref:
        """`owner.name`. Raises CannotCompile where its value is not certain."""
        model = self._resolved(self.schema)
        found = model["schema"]["fields"].get(name) if model["type"] == "model" else None
        if found is None or hasattr(inspect.getattr_static(model["cls"], name, None), "__get__"):
            raise CannotCompile(step, f"{name!r} is not a field of the object")
        config = model.get("config") or {}
        alias = found.get("validation_alias", name)
        if type(alias) is not str or (alias != name and _ALIASES & config.keys()):
            raise CannotCompile(step, f"the field {name!r} has several names")
        inner, spec = self._resolved(found["schema"]), None
        is_text = True
        if inner["type"] == "default":
            if not inner.keys() <= _DEFAULT or "default" not in inner:
                raise CannotCompile(step, f"the default of {name!r} is made in the client")
            default = inner["default"]
            spec = _checked({"op": "get", "key": alias, "default": default}, step)
            inner, is_text = self._resolved(inner["schema"]), type(default) is str
            if self._has_models(inner):
                raise CannotCompile(step, f"the object {name!r} has a default")
        shape = replace(self, is_strict=bool(config.get("strict")))
        before = (*self.data, spec) if spec is not None else _deeper(self.data, alias)
        return shape._part(owner, before, inner, step, is_text=is_text)

    def item(self, owner: Ref, key: Any, step: object) -> Ref:
        """`owner[key]`, for a list of objects."""
        schema = self._resolved(self.schema)
        if schema["type"] != "list" or type(key) is not int:
            raise CannotCompile(step, "it takes an item of an object")
        inner = self._resolved(schema["items_schema"])
        return self._part(owner, _deeper(self.data, key), inner, step, is_text=True)

    def _part(
        self, owner: Ref, data: tuple[Spec, ...], schema: Schema, step: object, *, is_text: bool
    ) -> Ref:
        if self._is_certain(schema):
            is_text = is_text and schema["type"] in ("str", "literal")
            return Ref(owner.var, data, is_text=is_text, is_field=True)
        if not self._has_models(schema):
            raise CannotCompile(step, "pydantic may change the value of a field")
        part = replace(self, data=data, schema=schema)
        return Ref(owner.var, data, is_text=False, make=_stay, shape=part, is_field=True)

    def _is_certain(self, schema: Schema) -> bool:
        """Whether each value that pydantic accepts stays as it is."""
        match schema["type"]:
            case "str":
                return schema.keys() <= _TEXT
            case "literal":
                return all(type(one) is str for one in schema["expected"])
            case "int" | "bool":
                return bool(schema.get("strict", self.is_strict)) and schema.keys() <= _NUMBER
            case "nullable":
                return self._is_certain(self._resolved(schema["schema"]))
            case "list" if "items_schema" in schema and schema.keys() <= _LIST:
                return self._is_certain(self._resolved(schema["items_schema"]))
        return False

    def _has_models(self, schema: Schema) -> bool:
        """Whether it is an object, or a list of objects."""
        if schema["type"] == "list" and "items_schema" in schema:
            return self._has_models(self._resolved(schema["items_schema"]))
        return bool(schema["type"] == "model")

    def _resolved(self, schema: Schema) -> Schema:
        while schema["type"] == "definition-ref":
            schema = self.definitions[schema["schema_ref"]]
        return schema


def shape_of(cls: Any, data: tuple[Spec, ...]) -> ObjectShape | None:
    """The shape of the objects of a class, or None where code of the user may change them."""
    if not isinstance(cls, type) or not issubclass(cls, BaseModel):
        return None
    found = _schema_of(cls)
    return None if found is None else ObjectShape(cls, data, *found)


@lru_cache(maxsize=256)
def _schema_of(cls: type[BaseModel]) -> tuple[Schema, Mapping[str, Schema]] | None:
    """The core schema of a class and its definitions, if it has no code of the user."""
    schema = cls.__dict__.get("__pydantic_core_schema__")
    if not isinstance(schema, dict):
        return None  # the class is not complete yet
    definitions: dict[str, Schema] = {}
    waiting: list[Schema] = [schema]
    while waiting:
        one = waiting.pop()
        if not _is_without_code(one):
            return None
        waiting += _parts(one)
        if "ref" in one:
            definitions[one["ref"]] = one
    if schema["type"] == "definitions":
        schema = schema["schema"]
    return schema, definitions


def _parts(schema: Schema) -> Iterator[Schema]:
    """The schemas inside a schema."""
    for name in ("schema", "items_schema", "keys_schema", "values_schema"):
        inner = schema.get(name)
        yield from inner if isinstance(inner, list) else [inner] if inner is not None else []
    yield from schema.get("fields", {}).values()
    yield from schema.get("definitions", ())
    for choice in schema.get("choices", ()):
        yield choice[0] if isinstance(choice, tuple) else choice


def _is_without_code(schema: Schema) -> bool:
    match schema["type"]:
        case "model":
            config = schema.get("config") or {}
            own = any(schema.get(name) for name in ("custom_init", "post_init", "root_model"))
            return not own and config.keys() <= _CONFIG and _is_plain_class(schema["cls"])
        case "model-fields":
            return schema.keys() <= _MODEL_FIELDS
        case "default":
            factory = schema.get("default_factory")
            return factory is None or any(factory is one for one in _FACTORIES)
        case "enum":
            return schema.get("missing") is None
        case kind:
            return kind in _NO_CODE


def _is_plain_class(cls: type[Any]) -> bool:
    """Whether a class makes and reads its objects as BaseModel does."""
    if type(cls) is not type(BaseModel) or hasattr(cls, "__bool__") or hasattr(cls, "__len__"):
        return False
    return all(_found(cls, name) is _found(BaseModel, name) for name in _OWN_WAYS)


def _found(cls: type[Any], name: str) -> Any:
    return inspect.getattr_static(cls, name, None)


def _deeper(data: tuple[Spec, ...], key: str | int) -> tuple[Spec, ...]:
    """The transforms that find one entry of what `data` finds."""
    *before, last = data or ({},)
    if last.get("op") == "path":
        return (*before, {"op": "path", "keys": [*last["keys"], key]})
    return (*data, {"op": "path", "keys": [key]})


def _checked(spec: Spec, step: object) -> Spec:
    try:
        transforms.parse(spec)
    except InvalidRequest as error:
        raise CannotCompile(step, error.message) from error
    return spec


def _stay(value: Any) -> Any:
    raise AssertionError("an object inside an object stays inside a function")
