"""The server of an embedder, a store or a reranker, as fields of a pydantic model."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from weftline.adapters import Retrieval
from weftline.adapters.server import Server, default_api_key, default_base_url, without_v1


def _api_key() -> SecretStr | None:
    key = default_api_key()
    return None if key is None else SecretStr(key)


class Place(BaseModel):
    """Where requests go. `base_url` may end in `/v1`, as it does for ChatWeftline."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, populate_by_name=True)

    base_url: str = Field(default_factory=default_base_url, validate_default=True)
    api_key: SecretStr | None = Field(default_factory=_api_key, exclude=True)
    timeout: float | None = Field(default=600.0, gt=0)
    """Seconds for which the server may be silent; None waits for ever."""

    @field_validator("base_url", mode="before")
    @classmethod
    def _without_v1(cls, url: Any) -> Any:
        return without_v1(url) if isinstance(url, str) else url

    @property
    def server(self) -> Retrieval:
        """The server that answers."""
        key = None if self.api_key is None else self.api_key.get_secret_value()
        return Retrieval(Server(self.base_url, key, timeout_s=self.timeout))
