"""The server of an embedder or a reranker, as fields of a LangChain class."""

from __future__ import annotations

from pydantic import ConfigDict

from weftline.kit.server_fields import ServerFields


class ServerAddress(ServerFields):
    """The server to which requests go. Other arguments raise an error."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, populate_by_name=True)
