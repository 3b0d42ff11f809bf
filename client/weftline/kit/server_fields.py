"""The fields of an adapter's pydantic models that name a server: its address, key and time limit.

Only the adapters import this file. Both frameworks install pydantic, which the client does not
need.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field, SecretStr, field_validator

from weftline.kit import Retrieval
from weftline.kit.server import Server, default_api_key, default_base_url, without_v1


def api_key_of_environment() -> SecretStr | None:
    """The key that the environment names, if any."""
    key = default_api_key()
    return None if key is None else SecretStr(key)


class ServerFields(BaseModel):
    """The server to which requests go. `base_url` may end in `/v1`, as for the chat models."""

    base_url: str = Field(default_factory=default_base_url, validate_default=True)
    api_key: SecretStr | None = Field(default_factory=api_key_of_environment, exclude=True)
    timeout: float | None = Field(default=600.0, gt=0)
    """The longest silence of the server, in seconds, before Timeout is raised. None: no limit."""

    @field_validator("base_url", mode="before")
    @classmethod
    def _without_v1(cls, url: Any) -> Any:
        return without_v1(url) if isinstance(url, str) else url

    @property
    def server(self) -> Retrieval:
        """The embedders, rerankers and stores of the server."""
        key = None if self.api_key is None else self.api_key.get_secret_value()
        return Retrieval(Server(self.base_url, key, timeout_s=self.timeout))
