"""The address of a server without its scheme is refused where it is given, in both frameworks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from llama_index.llms.weftline import Weftline

from langchain_weftline import ChatWeftline
from weftline import AsyncClient, Client
from weftline.errors import InvalidRequest

MAKERS: dict[str, Callable[[str], Any]] = {
    "langchain": lambda url: ChatWeftline(model="m", base_url=url),
    "llamaindex": lambda url: Weftline(model="m", base_url=url),
    "client": Client,
    "async client": AsyncClient,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("url", ["127.0.0.1:9", "localhost:9/v1"])
def test_an_address_without_a_scheme_is_refused(make: Callable[[str], Any], url: str) -> None:
    """The message has the address to write."""
    with pytest.raises(InvalidRequest, match=f"lacks its scheme: write http://{url}"):
        make(url)
