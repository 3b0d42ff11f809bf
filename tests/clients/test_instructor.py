"""A program of the package instructor, in its modes of tools and of schemas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import instructor
import openai
import pytest
from instructor.core.exceptions import InstructorRetryException
from pydantic import BaseModel, field_validator

from tests.clients.conftest import NAME, River, Sent

RHINE = {"name": "Rhine", "km": 1230}
ASKED = {instructor.Mode.TOOLS: f"{NAME} Call River.", instructor.Mode.JSON_SCHEMA: NAME}


@pytest.fixture(params=ASKED)
def client(request: pytest.FixtureRequest, base_url: str) -> Iterator[Any]:
    """The client in each mode."""
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as inner:
        yield instructor.from_openai(inner, mode=request.param)


def asked(client: Any, kind: type[BaseModel]) -> dict[str, Any]:
    """What to ask for. The script calls the tool that the package names after the type."""
    said = [{"role": "user", "content": ASKED[client.mode]}]
    return {"model": "null", "messages": said, "response_model": kind}


def test_an_object(client: Any, sent: Sent) -> None:
    """The answer is read into the type, in one request that forces the tool or the form."""
    river = client.chat.completions.create(**asked(client, River))
    assert river.model_dump() == RHINE
    [body] = sent.bodies
    if client.mode is instructor.Mode.TOOLS:
        assert body["tool_choice"] == {"type": "function", "function": {"name": "River"}}
    else:
        assert body["response_format"]["type"] == "json_schema"


def test_a_part_of_an_object(client: Any) -> None:
    """The streamed answer is read while it comes, and is the same at its end."""
    parts = list(client.chat.completions.create_partial(**asked(client, River)))
    assert [part.model_dump() for part in parts][-1] == RHINE


def test_an_object_that_does_not_fit(client: Any, sent: Sent) -> None:
    """The client asks again with what was wrong, as often as it was told, and gives up."""

    class River(BaseModel):
        """A river that the scripted answer is too long for."""

        name: str
        km: int

        @field_validator("km")
        @classmethod
        def _short(cls, km: int) -> int:
            if km > 1000:
                raise ValueError("too long")
            return km

    with pytest.raises(InstructorRetryException, match="too long"):
        client.chat.completions.create(**asked(client, River), max_retries=1)
    assert len(sent.bodies) == 2
