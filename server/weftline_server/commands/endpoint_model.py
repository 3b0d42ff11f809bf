"""Finds what a running vLLM or SGLang serves, and a directory with its tokenizer."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from weftline.contract.errors import InvalidRequest
from weftline_engine.own.models import ModelUnavailable, for_stream, words_directory
from weftline_engine.remote.openai.endpoint import Endpoint, EndpointConfig, EndpointError

MOST_NAMED = 8  # models that an error lists
# SGLang says here where it has read its tokenizer. The second is the older name.
_INFO_PATHS = ("/model_info", "/get_model_info")
_INFO_FIELDS = ("tokenizer_path", "model_path")
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model by the endpoint's name, and what else its tokenizer may be found by."""

    name: str
    sources: tuple[str, ...] = ()
    is_adapter: bool = False


def served_model(root: EndpointConfig, wanted: str | None) -> tuple[str, Path]:
    """Return the name of the model that the server at `root` serves, and a directory with its
    tokenizer. `wanted` None takes the only one. Raises InvalidRequest."""
    try:
        listed, info = asyncio.run(_ask(root))
    except EndpointError as error:
        raise InvalidRequest(
            f"{root.url} does not tell what it serves, because {error}: start it first, and give "
            "MODEL, a directory with its tokenizer, if it lists none",
            param="connect",
        ) from error
    model = _chosen(root.url, listed, wanted)
    for source in dict.fromkeys((*info, *model.sources, model.name)):
        if (directory := _words_of(source)) is not None:
            return model.name, directory
    raise InvalidRequest(
        f"the tokenizer of {model.name!r}, which {root.url} serves, is not found by its name: give "
        "as MODEL a directory with its tokenizer.json, hf:ORG/NAME or a .gguf file",
        param="model",
    )


def _chosen(url: str, listed: Sequence[ListedModel], wanted: str | None) -> ListedModel:
    names = ", ".join(one.name for one in listed[:MOST_NAMED]) or "none"
    if wanted is not None:
        found = [one for one in listed if one.name == wanted]
        said = f"{url} serves no model {wanted!r}: it lists {names}"
    else:
        found = [one for one in listed if not one.is_adapter]
        said = f"{url} lists {len(found)} models ({names}): choose one with --served NAME"
    if len(found) != 1:
        raise InvalidRequest(said, param="served")
    return found[0]


async def _ask(root: EndpointConfig) -> tuple[list[ListedModel], list[str]]:
    """What GET /v1/models lists, and where SGLang has read its tokenizer."""
    endpoint = Endpoint(root)
    try:
        status, body = await endpoint.get("/v1/models")
        if status != 200:
            raise EndpointError("EngineFailed", f"GET /v1/models is answered with {status}")
        info: list[str] = []
        for path in _INFO_PATHS:
            told = _object(await _found(endpoint, path))
            named = [told.get(name) for name in _INFO_FIELDS]
            info += [one for one in named if isinstance(one, str)]
        return list(_models(body)), info
    finally:
        await endpoint.close()


async def _found(endpoint: Endpoint, path: str) -> bytes:
    status, body = await endpoint.get(path)
    return body if status == 200 else b""


def _object(body: bytes) -> dict[str, object]:
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _models(body: bytes) -> Iterator[ListedModel]:
    listed = _object(body).get("data")
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict) and isinstance(one.get("id"), str):
            sources = [one.get(key) for key in ("root", "parent")]
            found = tuple(source for source in sources if isinstance(source, str))
            yield ListedModel(one["id"], found, isinstance(one.get("parent"), str))


def _words_of(source: str) -> Path | None:
    """The tokenizer of a directory of this machine or of a repository of the Hub, or None."""
    if Path(source).is_absolute():
        name = source
    elif _HUB.fullmatch(source):
        name = f"hf:{source}"
    else:
        return None
    try:
        return words_directory(name, progress=for_stream())
    except ModelUnavailable:
        return None
