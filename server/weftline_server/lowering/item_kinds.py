"""Kinds that take a list item by item, and the texts, embedded texts and hits that they read.

Items that are sent early are advice: the op's result is put together from the results of the items
in the whole value. An item that was sent early and is not in the whole value costs time only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from weftline.contract.errors import InvalidRequest, WeftlineError
from weftline.contract.steps import Embed, Reading, Rerank, StepBase
from weftline.contract.vectors import Embedded, Vectors
from weftline_server.graph.primitive import ItemFlow, Where
from weftline_server.lowering.step import StepKind, named

MAX_ITEMS = 100_000  # of one step

R = TypeVar("R", bound=Reading)


class ItemKind(StepKind[R]):
    """A kind whose results for the items of its main input do not depend on each other.

    The kind is `ordered` if the first results are the first items of its value. `whole_inputs` are
    the inputs of its op that hold the items.
    """

    ordered: ClassVar[bool] = False
    whole_inputs: ClassVar[frozenset[str]] = frozenset({"texts"})

    def gives(self, step: R) -> bool:
        """Whether its value is a list of one result for each item."""
        return True

    def item_flow(self, step: R, batch: int | None) -> ItemFlow | None:
        if self.traits.where is not Where.ENGINE:
            batch = 0
        if batch is None:
            return None
        others = {one.var for name, one in step.sources.items() if name != "in"}
        source = step.in_
        takes = source.var is not None and source.var not in {*others, *step.after}
        return ItemFlow(
            takes=source.var or "" if takes else "",
            through=source.transforms,
            gives=self.gives(step),
            count=len(source.value) if isinstance(source.value, list) else 0,
            batch=batch,
            ordered=self.ordered,
        )

    def fed(self, step: R, items: Sequence[Any]) -> list[Any]:
        """These items of the input as the engine gets them, up to the first item that does not
        fit."""
        found: list[Any] = []
        for item in items:
            try:
                found += self.fed_item(step, item)
            except WeftlineError:
                break  # the step fails with this error when its whole input is there
        return found

    def fed_item(self, step: R, item: Any) -> list[Any]:
        """One item as the engine gets it. Raises InvalidRequest for an item that does not fit."""
        return texts_of(step, [item])

    def wanted(self, inputs: Mapping[str, Any]) -> list[Any]:
        """The items of an op's whole inputs, in the form in which they are fed."""
        return list(inputs["texts"])

    def rest(self, step: R, given: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs of an op that streams, beside its items. `given` is what else it reads."""
        return dict(given)

    def whole(self, results: Sequence[Any]) -> object:
        """The value of an op from the results of its items, as the engine would have given it."""
        return {"hits": list(results)}

    def passed_on(self, items: Sequence[Any], results: Sequence[Any]) -> tuple[Any, ...]:
        """The items that the next step takes, made of these items and the engine's results for
        them."""
        return tuple(results)

    def so_far(self, step: R, items: Sequence[Any], known: Sequence[Any]) -> tuple[Any, ...]:
        """The results that the server can pass on of a step that it computes, beside those that are
        `known`."""
        return ()


def cutting(step: Embed | Rerank) -> dict[str, Any]:
    """The input of the op that says to how many tokens texts are cut, if they are."""
    cut = step.truncate_prompt_tokens
    return {} if cut is None else {"truncate_prompt_tokens": cut}


def key_of(item: Any) -> str | Vectors:
    """Equal items have equal keys."""
    return item if isinstance(item, (str, Vectors)) else json.dumps(item, sort_keys=True)


def texts_of(step: StepBase, value: object) -> list[str]:
    """The texts of a text or of a list of texts or items. Raises InvalidRequest."""
    return [item["text"] for item in items_of(step, value)]


def items_of(step: StepBase, value: object) -> list[dict[str, Any]]:
    """The items of a text or of a list of texts or items. Raises InvalidRequest."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or len(listed) > MAX_ITEMS:
        raise InvalidRequest(
            f"{named(step)} takes a text, or a list of at most {MAX_ITEMS:,} texts or items",
            param="in",
        )
    return [_item(step, one) for one in listed]


def _item(step: StepBase, value: object) -> dict[str, Any]:
    item = {"text": value} if isinstance(value, str) else value
    if not isinstance(item, dict) or not isinstance(item.get("text"), str):
        raise InvalidRequest(
            f"{named(step)} takes texts, or objects with a 'text', not {str(value)[:60]!r}",
            param="in",
        )
    return item


def embedded_of(step: StepBase, value: object, most: int | None = None) -> Embedded:
    """The value of an embed step, or what JSON of a client or a record says of such a value.

    Raises InvalidRequest for any other value, and for JSON of more than `most` vectors.
    """
    if isinstance(value, Embedded):
        return value
    try:
        return Embedded.from_json(value, most)
    except ValueError as error:
        raise InvalidRequest(
            f"{named(step)} takes embedded texts: read the output of an embed step ({error})",
            param="in",
        ) from None


def hit_lists_of(step: StepBase, value: object) -> list[list[dict[str, Any]]]:
    """Lists of hits. Hits that stand beside the lists are one list together.

    Raises InvalidRequest for any other value.
    """
    if not isinstance(value, list):
        raise InvalidRequest(f"{named(step)} takes lists of hits", param="in")
    lists: list[list[dict[str, Any]]] = []
    alone: list[dict[str, Any]] | None = None
    for one in value:
        if isinstance(one, list):
            lists.append([_item(step, hit) for hit in one])
            alone = None
        elif alone is None:
            lists.append(alone := [_item(step, one)])
        else:
            alone.append(_item(step, one))
    return lists


def hits_of(step: StepBase, value: object) -> list[dict[str, Any]]:
    """The hits of one list, or of lists of hits. Raises InvalidRequest for any other value."""
    return [hit for hits in hit_lists_of(step, value) for hit in hits]
