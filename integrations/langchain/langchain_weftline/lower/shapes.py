"""The fields of pydantic objects, as parts of the JSON in a model's answer.

Pydantic may change a value: a validator may do anything. A field counts here as what the JSON has.
Where pydantic changes it, the call that reads it is not the one that LangChain makes, so the model
makes that call itself.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from langchain_weftline.lower.symbols import CannotCompile, Ref, Spec, ValueKind
from weftline.contract import transforms
from weftline.errors import InvalidRequest

# Types whose values Python shows as it shows those in the JSON.
_PLAIN = (str, int, float, bool, dict, types.NoneType)


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """The shape of an object of the type `of`: a class of pydantic, or a list of its objects.

    `data` are the transforms that find its JSON in the answer.
    """

    of: Any
    data: tuple[Spec, ...]

    def attribute(self, owner: Ref, name: str, step: object) -> Ref:
        """`owner.name`. Raises CannotCompile where its value is no part of the JSON."""
        found = self.of.model_fields.get(name) if _is_model(self.of) else None
        if found is None:
            raise CannotCompile(step, f"{name!r} is not a field of the object")
        alias = found.validation_alias or found.alias or name
        if type(alias) is not str:
            raise CannotCompile(step, f"the field {name!r} has several names")
        if found.is_required():
            data = _deeper(self.data, alias)
        else:
            data = (*self.data, _with_default(alias, found, step))
        kind = _bare(found.annotation)
        is_text = _is_text(kind) and (found.is_required() or type(found.default) is str)
        return _part(owner, data, kind, step, is_text=is_text)

    def item(self, owner: Ref, key: Any, step: object) -> Ref:
        """`owner[key]`, for a list of objects."""
        if get_origin(self.of) is not list or type(key) is not int:
            raise CannotCompile(step, "it takes an item of an object")
        kind = _bare(get_args(self.of)[0])
        return _part(owner, _deeper(self.data, key), kind, step, is_text=_is_text(kind))


def shape_of(cls: Any, data: tuple[Spec, ...]) -> ObjectShape | None:
    """The shape of the objects of a class; None for a class that is not pydantic's."""
    return ObjectShape(cls, data) if _is_model(cls) else None


def _part(owner: Ref, data: tuple[Spec, ...], kind: Any, step: object, *, is_text: bool) -> Ref:
    if _has_models(kind):
        shape = ObjectShape(kind, data)
        return Ref(owner.var, data, is_text=False, kind=ValueKind.OBJECT, shape=shape)
    if not _is_plain(kind):
        raise CannotCompile(step, "pydantic makes something else of the value of a field")
    return Ref(owner.var, data, is_text=is_text)


def _with_default(alias: str, found: FieldInfo, step: object) -> Spec:
    if found.default_factory is not None or _has_models(_bare(found.annotation)):
        raise CannotCompile(step, f"the default of {alias!r} is made in the client")
    spec = {"op": "get", "key": alias, "default": found.default}
    try:
        transforms.parse(spec)
    except InvalidRequest as error:
        raise CannotCompile(step, error.message) from error
    return spec


def _bare(annotation: Any) -> Any:
    """A type without its metadata, and without None beside it."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        others = [one for one in get_args(annotation) if one is not types.NoneType]
        return _bare(others[0]) if len(others) == 1 else annotation
    return annotation


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _has_models(kind: Any) -> bool:
    """Whether it is an object, or a list of objects."""
    return _is_model(kind) or (get_origin(kind) is list and _has_models(_bare(get_args(kind)[0])))


def _is_text(kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return all(type(one) is str for one in get_args(kind))
    return kind is str


def _is_plain(kind: Any) -> bool:
    if get_origin(kind) in (Union, types.UnionType, list, dict):
        return all(_is_plain(_bare(one)) for one in get_args(kind))
    return kind is list or kind is Any or get_origin(kind) is Literal or kind in _PLAIN


def _deeper(data: tuple[Spec, ...], key: str | int) -> tuple[Spec, ...]:
    """The transforms that find one entry of what `data` finds."""
    *before, last = data or ({},)
    if last.get("op") == "path":
        return (*before, {"op": "path", "keys": [*last["keys"], key]})
    return (*data, {"op": "path", "keys": [key]})
