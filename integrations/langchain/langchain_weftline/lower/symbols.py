"""Symbolic values, which stand for text that the server has not generated yet.

Plain dicts, lists and tuples may contain them, so a step that only moves values works unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Protocol

from langchain_weftline.model.forms import Form
from weftline.contract.transforms.methods import FACTS, LISTS

Spec = dict[str, Any]
"""A transform as data (weftline.contract.transforms)."""


class ValueKind(Enum):
    """What LangChain makes of a value of the server, if that is not the value itself."""

    OBJECT = "an object of a class"
    DOCUMENTS = "the documents of a search"
    UNIQUE_DOCUMENTS = "the documents of several searches, each once"


class CannotCompile(ValueError):
    """The server cannot compute a step ahead, for this reason. Only LangChain runs it then."""

    def __init__(self, step: object, reason: str) -> None:
        self.step = step if isinstance(step, str) else name_of(step)
        self.reason = reason
        super().__init__(f"{self.step} cannot run in the server: {reason}")


def name_of(step: object) -> str:
    """The class of a runnable, with the runnable's name if it has one."""
    name = getattr(step, "name", None)
    return f"{type(step).__name__} {name!r}" if isinstance(name, str) else type(step).__name__


class Shape(Protocol):
    """The parts of an object that the server has."""

    def attribute(self, owner: Ref, name: str, step: object) -> Ref:
        """`owner.name`. Raises CannotCompile where its value is not certain."""

    def item(self, owner: Ref, key: Any, step: object) -> Ref:
        """`owner[key]`. Raises CannotCompile where its value is not certain."""


@dataclass(frozen=True, slots=True)
class Ref:
    """The variable `var` after `transforms`. `is_text` says that the value is a string.

    `kind` says what LangChain makes of the value; None stands for the value itself. `shape` has the
    fields of an object.
    """

    var: str
    transforms: tuple[Spec, ...] = ()
    is_text: bool = True
    kind: ValueKind | None = None
    shape: Shape | None = None

    def then(self, spec: Spec, *, is_text: bool = False) -> Ref:
        """This value after one more transform."""
        return replace(self, transforms=(*self.transforms, spec), is_text=is_text)

    def as_text(self) -> Ref:
        """This value, marked as a string."""
        return replace(self, is_text=True)


@dataclass(frozen=True, slots=True)
class AnswerMessage:
    """The AIMessage of a call. The variable `var` is its content, or with tools the whole message.

    `form` is the form that the request asked for.
    """

    var: str
    calls_tools: bool = False
    form: Form | None = None

    @property
    def text(self) -> Ref:
        """The message's content."""
        return Ref(self.var)


@dataclass(frozen=True, slots=True)
class Hole:
    """A place in a text for the value of `ref`, as it is or after the transform `str` or `repr`."""

    ref: Ref
    form: tuple[Spec, ...] = ()


Fragment = str | Hole


@dataclass(frozen=True, slots=True)
class HoleText:
    """A string made of constant text and holes."""

    pieces: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True)
class HoleMessage:
    """A message of class `cls` whose content is made of constant text and holes."""

    cls: type[Any]
    pieces: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """The text that a template's variable `name` contributes."""

    name: str
    pieces: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True)
class PromptMessage:
    """One message of a prompt: constant text and slots. `role` has the server's name for it.

    `thoughts` are those before an earlier answer.
    """

    role: str
    content: tuple[str | Slot, ...]
    name: str | None = None
    thoughts: str = ""

    def pieces(self) -> Iterator[Fragment]:
        """All fragments of its text, in order."""
        for part in self.content:
            yield from part.pieces if isinstance(part, Slot) else (part,)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt that still shows its slots. `name` is the template's name."""

    turns: tuple[PromptMessage, ...]
    name: str | None = None

    def holes(self) -> Iterator[Hole]:
        """The places that the server fills."""
        for turn in self.turns:
            yield from (piece for piece in turn.pieces() if isinstance(piece, Hole))

    @property
    def is_known(self) -> bool:
        """Whether all of its text is known before the run, apart from the server's values."""
        pieces = (piece for turn in self.turns for piece in turn.pieces())
        return not any(isinstance(piece, str) and UNKNOWN_TEXT in piece for piece in pieces)

    @property
    def has_half_characters(self) -> bool:
        """Whether a constant text has a lone surrogate, which JSON cannot encode."""
        texts = (piece for turn in self.turns for piece in turn.pieces() if isinstance(piece, str))
        return any(not text.isascii() and _HALF.search(text) is not None for text in texts)


_HALF = re.compile("[\ud800-\udfff]")


class Unknown(dict[Any, Any]):
    """A value that is computed during the run. Lowering knows at most some of its items."""

    def __missing__(self, key: object) -> Unknown:
        return UNKNOWN

    def __format__(self, spec: str) -> str:
        return UNKNOWN_TEXT

    def __repr__(self) -> str:
        return UNKNOWN_TEXT


UNKNOWN = Unknown()
UNKNOWN_TEXT = "\ue5f3"  # a private code point, which texts do not contain


def has_unknown(value: Any) -> bool:
    """Whether any part of `value` is unknown to the plan."""
    if isinstance(value, Unknown):
        return True
    if isinstance(value, dict):
        return any(map(has_unknown, value.values()))
    return isinstance(value, (list, tuple)) and any(map(has_unknown, value))


def is_symbolic(value: Any) -> bool:
    """Whether any part of `value` exists only in the server."""
    if isinstance(value, dict):
        return any(map(is_symbolic, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(is_symbolic, value))
    return isinstance(value, (Ref, AnswerMessage, HoleText, HoleMessage, Prompt))


def shown(value: Any, step: object, *, quoted: bool = False) -> tuple[Fragment, ...]:
    """`value` as an f-string shows it, or as `repr` shows it when `quoted`."""
    if not is_symbolic(value):
        return (repr(value) if quoted else format(value),)
    if isinstance(value, Ref):
        if value.kind is not None:
            raise CannotCompile(step, "it shows an object that the client makes")
        form = {"op": "repr"} if quoted else {"op": "str"}
        return (Hole(value, () if value.is_text and not quoted else (form,)),)
    if isinstance(value, HoleText) and not quoted:
        return value.pieces
    if isinstance(value, dict):
        items = [
            (*shown(key, step, quoted=True), ": ", *shown(item, step, quoted=True))
            for key, item in value.items()
        ]
        return ("{", *_separated(items), "}")
    if isinstance(value, (list, tuple)):
        items = [shown(item, step, quoted=True) for item in value]
        opening, closing = ("[", "]") if isinstance(value, list) else ("(", ")")
        comma = "," if isinstance(value, tuple) and len(value) == 1 else ""
        return (opening, *_separated(items), comma + closing)
    raise CannotCompile(step, f"it shows a {_kind(value)} whose quotes depend on its text")


def joined(separator: str, values: list[Any], step: object) -> Any:
    """`separator.join(values)`. Each value must be known to be a string."""
    items = [string_pieces(value, step) for value in values]
    return settled(_separated(items, separator))


def settled(pieces: Iterable[Fragment]) -> Any:
    """The simplest value for the text of `pieces`: a string, a variable or a HoleText."""
    kept = tuple(piece for piece in pieces if piece != "")
    if all(isinstance(piece, str) for piece in kept):
        return "".join(map(str, kept))
    if len(kept) == 1 and isinstance(kept[0], Hole) and not kept[0].form:
        return kept[0].ref
    return HoleText(kept)


# The transforms whose value is a list of texts, whatever the model has written.
_LISTS_OF_TEXTS = frozenset({"line_list", "comma_list", "numbered_list", "markdown_list"})


def is_list_of_texts(value: Any) -> bool:
    """Whether `value` is surely a list of texts of the server."""
    if not isinstance(value, Ref) or value.kind is not None or not value.transforms:
        return False
    last = value.transforms[-1]
    return last["op"] in _LISTS_OF_TEXTS or (last["op"] == "text" and last["method"] in LISTS)


def item_of(value: Any, key: Any, step: object) -> Ref:
    """`value[key]` for a value of the server."""
    if isinstance(value, Ref) and value.shape is not None:
        return value.shape.item(value, key, step)
    if not isinstance(value, Ref) or value.kind is not None or type(key) not in (str, int):
        raise CannotCompile(step, f"it takes item {str(key)[:40]!r} of a {_kind(value)}")
    *before, last = value.transforms or ({},)
    if last.get("op") != "path":
        # A part of a split text, or a character.
        of_texts = last.get("op") == "text" and last["method"] not in FACTS and type(key) is int
        return value.then({"op": "path", "keys": [key]}, is_text=of_texts)
    deeper = {"op": "path", "keys": [*last["keys"], key]}
    return replace(value, transforms=(*before, deeper), is_text=False)


def string_pieces(value: Any, step: object) -> tuple[Fragment, ...]:
    """The fragments of a value that is used as a string. The value must be known to be a string."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, HoleText):
        return value.pieces
    if isinstance(value, Ref) and value.is_text:
        return (Hole(value),)
    raise CannotCompile(step, f"it needs a string where it gets a {_kind(value)}")


def _separated(items: list[tuple[Fragment, ...]], separator: str = ", ") -> list[Fragment]:
    pieces: list[Fragment] = []
    for index, item in enumerate(items):
        pieces += [separator] * (index > 0 and bool(separator))
        pieces += item
    return pieces


_KINDS = {
    Ref: "parsed value",
    AnswerMessage: "message",
    HoleMessage: "message",
    HoleText: "built string",
    Prompt: "prompt",
}


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), type(value).__name__)
