"""What all steps of a graph have: sources that they read, and a variable that they write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from weftline.contract.bodies import JsonBody, StrictBody
from weftline.contract.errors import InvalidRequest
from weftline.contract.ids import check_id

MAX_K = 1000  # hits of a search, and items that a rerank keeps
MAX_CUT = 1 << 30  # tokens
MAX_NAME = 128  # characters
MAX_PARTS = 256  # of a text, a mean or a merge


def _in_json(name: str) -> str:
    """A field's name in JSON. Python reserves the word `in`, so its field is called `in_`."""
    return name.rstrip("_")


class StepObject(JsonBody):
    """An object of a step, whose unknown fields are refused. A reserved word is a field's name."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {
        **StrictBody.__pydantic_config__,
        "alias_generator": _in_json,
        "validate_by_name": False,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(StepObject):
    """What a step reads: a variable, whose value goes through `transforms`, or a constant value."""

    var: str | None = None
    value: Any = None
    transforms: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if (self.var is None) == (self.value is None):
            raise InvalidRequest("a step reads exactly one of 'var' and 'value'", param="in")
        if self.var is not None:
            check_id(self.var, "var")


def check_cut(tokens: int) -> None:
    """Raise InvalidRequest unless texts can be cut to so many tokens, or to the model's (-1)."""
    if tokens != -1 and not 1 <= tokens <= MAX_CUT:
        raise InvalidRequest(
            f"truncate_prompt_tokens must be -1, for what the model takes, or 1 to {MAX_CUT}",
            param="truncate_prompt_tokens",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBase(StepObject):
    """The fields of every step.

    `out` is the variable that the step writes. Without it the server makes one. The step also waits
    for the variables of `after`, but does not read them.
    """

    name: str = ""
    out: str | None = None
    after: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.name) > MAX_NAME or not (self.name.isprintable() or not self.name):
            raise InvalidRequest("a step's name has up to 128 printable characters", param="name")
        for variable in (*self.after, *(() if self.out is None else (self.out,))):
            check_id(variable, "out" if variable == self.out else "after")
        for name in ("k", "limit"):
            count = getattr(self, name, None)
            if count is not None and not 1 <= count <= MAX_K:
                raise InvalidRequest(f"{name} must be between 1 and {MAX_K}", param=name)
        if (cut := getattr(self, "truncate_prompt_tokens", None)) is not None:
            check_cut(cut)

    @property
    def sources(self) -> Mapping[str, Source]:
        """What it reads, by the field's name in JSON."""
        return {}

    @property
    def outputs(self) -> tuple[str, ...]:
        """The variables that the client has named for what it writes."""
        return () if self.out is None else (self.out,)

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that the step reads, without those of `after`."""
        return tuple(one.var for one in self.sources.values() if one.var is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(StepBase):
    """A step with one main input, `in`."""

    in_: Source

    @property
    def sources(self) -> Mapping[str, Source]:
        """What it reads, by the field's name in JSON."""
        return {"in": self.in_}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts(StepBase):
    """A step that makes one value of several."""

    parts: tuple[Source, ...]

    def __post_init__(self) -> None:
        StepBase.__post_init__(self)  # super() fails here: slots=True makes a new class
        if not 0 < len(self.parts) <= MAX_PARTS:
            kind = getattr(self, "kind", "step")
            raise InvalidRequest(f"a {kind} has 1 to {MAX_PARTS} parts", param="parts")

    @property
    def sources(self) -> Mapping[str, Source]:
        """The step's parts, by their numbers."""
        return {str(number): part for number, part in enumerate(self.parts)}
