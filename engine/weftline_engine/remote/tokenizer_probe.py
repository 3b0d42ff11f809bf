"""A text that shows whether an endpoint's tokenizer is the one in a directory."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from tokenizers import Tokenizer

from weftline_engine.remote.openai.endpoint import Endpoint, EndpointError

log = logging.getLogger("weftline.engines")

# Letters, digits, spaces, signs and characters of several bytes, which tokenizers cut differently.
PROBE = "Hello, world! It's 12345 o'clock.\n\n  def f(x):\n\treturn x**2  # naïve 你好 🙂\n"


def tokenizer_in(directory: Path) -> Tokenizer:
    """The tokenizer of a model's directory."""
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def probe_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids that a tokenizer gives the probe."""
    return tuple(tokenizer.encode(PROBE, add_special_tokens=False).ids)


async def check_tokenizer(root: Endpoint, model: str, directory: Path) -> None:
    """Compare an endpoint's own tokenizer with the one in a directory, if its POST /tokenize tells
    it as vLLM's does. Raises EndpointError if they differ, or if the endpoint does not answer."""
    told = await _told(root, model)
    if told is None:
        log.warning(
            "%s has no /tokenize, so nothing tells whether its tokenizer is that of %s",
            root.config.url,
            directory.name,
        )
    elif told != await asyncio.to_thread(lambda: probe_ids(tokenizer_in(directory))):
        raise EndpointError(
            "UnknownModel",
            f"the tokenizer of {directory.name!r} is not that of {model!r}, which the endpoint "
            "serves: give as MODEL what it serves",
        )


async def _told(root: Endpoint, model: str) -> tuple[int, ...] | None:
    body = {"model": model, "prompt": PROBE, "add_special_tokens": False}
    try:
        tokens = (await root.post("/tokenize", body, within_s=root.config.connect_s)).get("tokens")
    except EndpointError as error:
        if error.broken:
            raise
        return None
    if not isinstance(tokens, list) or not all(type(one) is int for one in tokens):
        return None
    return tuple(tokens)
