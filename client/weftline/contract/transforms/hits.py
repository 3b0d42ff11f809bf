"""The transforms of retrieved documents: their texts, joined into one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from weftline.contract.errors import TransformFailed
from weftline.contract.transforms.base import MAX_OPTION_CHARS, Transform, refuse


@dataclass(frozen=True, slots=True)
class Texts(Transform):
    """The texts of hits or items, in their order, joined by `separator`.

    Several queries give a list of lists. Their hits are joined in the order of the lists. With
    `unique` a hit with the text, the id and the metadata of an earlier one is left out.
    """

    op: ClassVar[str] = "texts"
    separator: str = "\n\n"
    unique: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.separator, str) or len(self.separator) > MAX_OPTION_CHARS:
            refuse(f"texts takes 'separator', at most {MAX_OPTION_CHARS} characters")
        if not isinstance(self.unique, bool):
            refuse("texts takes 'unique', true or false")

    def apply(self, value: Any) -> Any:
        items = _items(value, nested=True)
        kept = _unique(items) if self.unique else items
        return self.separator.join(item["text"] for item in kept)

    def joined(self, items: Sequence[Any]) -> str:
        """The texts so far. There is no separator at the end."""
        return str(self.apply(list(items)))


def _items(value: Any, *, nested: bool) -> Iterator[dict[str, Any]]:
    if not isinstance(value, list):
        raise TransformFailed("texts reads a list of hits or items")
    for one in value:
        if isinstance(one, list) and nested:
            yield from _items(one, nested=False)
        elif isinstance(one, dict) and isinstance(one.get("text"), str):
            yield one
        else:
            raise TransformFailed("texts reads hits or items, each an object with a 'text'")


def _unique(items: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The items without those that have the text, the id and the metadata of an earlier one."""
    seen: dict[str, list[Any]] = {}  # by text, so that few are compared
    for item in items:
        rest = item.get("id"), item.get("metadata")
        earlier = seen.setdefault(item["text"], [])
        if rest not in earlier:
            earlier.append(rest)
            yield item


@dataclass(frozen=True, slots=True)
class NodeTexts(Transform):
    """What LlamaIndex shows a model of the nodes that were found: their metadata and texts.

    A hit holds its node as LlamaIndex's vector stores keep it. Blank texts are left out, the others
    are stripped. One hit gives its own text. The transform fails where nothing was found, because
    LlamaIndex then asks no model.
    """

    op: ClassVar[str] = "node_texts"

    def apply(self, value: Any) -> Any:
        if not isinstance(value, list | dict):
            raise TransformFailed("node_texts reads a list of hits")
        shown = (_content(hit, "llm") for hit in (value if isinstance(value, list) else [value]))
        texts = [text.strip() for text in shown if text.strip()]
        if not texts:
            raise TransformFailed("node_texts found no text")
        return "\n\n".join(texts)


@dataclass(frozen=True, slots=True)
class NodeItems(Transform):
    """The nodes that were found, as items to rerank: what LlamaIndex embeds of each, and its hit.

    An item has the `index` of its hit, too. `node_texts` reads the items like the hits.
    """

    op: ClassVar[str] = "node_items"

    def apply(self, value: Any) -> Any:
        if not isinstance(value, list):
            raise TransformFailed("node_items reads a list of hits")
        return [
            {"text": _content(hit, "embed"), "index": at, NODE: hit} for at, hit in enumerate(value)
        ]


NODE = "node"  # of an item, its hit
# LlamaIndex's templates, where a node has none of its own.
_NODE: Mapping[str, Any] = {
    "text_template": "{metadata_str}\n\n{content}",
    "metadata_template": "{key}: {value}",
}


def identity_of(hit: Mapping[str, Any]) -> str:
    """What LlamaIndex makes a node's hash of. Raises TransformFailed for what is no TextNode."""
    return f"{hit['text']}{_node_of(hit)['metadata']}"


def _node_of(hit: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a hit's node. Raises TransformFailed for what is no TextNode."""
    kept = hit.get("metadata") or {}
    if "_node_content" not in kept:
        return {"metadata": kept}
    if kept.get("_node_type", "TextNode") != "TextNode":
        raise TransformFailed("node_texts reads nodes of the class TextNode")
    return {"metadata": {}, **_loaded(kept["_node_content"])}


def _content(found: Any, reader: str) -> str:
    """The text of a node for its `reader`, which is llm or embed, as `get_content` makes it."""
    hit = found.get(NODE, found) if isinstance(found, dict) else None
    if not isinstance(hit, dict) or not isinstance(hit.get("text"), str):
        raise TransformFailed("node_texts reads hits, each an object with a 'text'")
    node = {**_NODE, **_node_of(hit)}
    joint = node.get("metadata_separator", node.get("metadata_seperator", "\n"))
    try:
        shown = joint.join(
            _filled(node["metadata_template"], key=key, value=str(value))
            for key, value in node["metadata"].items()
            if key not in node.get(f"excluded_{reader}_metadata_keys", ())
        ).strip()
        if not shown:
            return str(hit["text"])
        return _filled(node["text_template"], metadata_str=shown, content=hit["text"]).strip()
    except (AttributeError, TypeError) as error:
        raise TransformFailed("node_texts reads nodes of LlamaIndex") from error


def _loaded(text: Any) -> dict[str, Any]:
    try:
        node = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise TransformFailed("node_texts cannot read a node's JSON") from error
    if not isinstance(node, dict):
        raise TransformFailed("node_texts reads nodes of LlamaIndex")
    return node


_FIELD = re.compile(r"\{([a-z_]*)\}")


def _filled(template: str, **values: str) -> str:
    """The template with its fields. It is data of a tenant, so Python's `format` never sees it."""
    rest = _FIELD.sub("", template)
    if "{" in rest or "}" in rest or not {*_FIELD.findall(template)} <= {*values}:
        raise TransformFailed("node_texts reads templates of plain fields only")
    return _FIELD.sub(lambda field: values[field[1]], template)
