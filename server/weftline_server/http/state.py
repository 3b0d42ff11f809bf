"""The data that every route needs: the application's state, the service, and the asking tenant."""

from __future__ import annotations

import hashlib
import hmac
import time
from typing import Annotated, Any, Protocol

from fastapi import Depends, Request
from starlette.applications import Starlette
from starlette.datastructures import State

from weftline.contract.errors import Unauthorized
from weftline_server.config import ServerConfig
from weftline_server.http.openai.background_events import BackgroundResponses
from weftline_server.http.openai.conversations import Conversations
from weftline_server.http.openai.kept_thoughts import KeptThoughts
from weftline_server.http.openai.runs import Runs
from weftline_server.http.renderings import Renderings
from weftline_server.journal.cipher import Cipher
from weftline_server.journal.kept_objects import KeptObjects, Performer
from weftline_server.observe.advice.accounting_lines import AccountingLines
from weftline_server.observe.advice.advisor import Advisor
from weftline_server.observe.cost import Prices
from weftline_server.observe.metrics import Metrics
from weftline_server.runtime.service import Draining, Service

# Where a request says for how many seconds it counts as a reader after its connection has ended.
GRACE = "weftline.grace"
OPEN_TENANT = "local"  # of every client, on a server without keys


class OtherServers(Protocol):
    """The other servers of the store, as the routes and the end of this server see them."""

    @property
    def under_way(self) -> int:
        """Requests that are handled here, or passed on."""

    async def answers(self, request: Request) -> list[dict[str, Any]]:
        """What the others answer to a GET that this server answers, too."""

    async def close(self) -> None:
        """End the connections to them."""


class ServerState(State):
    """Starlette's state, with every name and type declared."""

    config: ServerConfig
    service: Service
    metrics: Metrics
    advisor: Advisor
    prices: Prices
    runs: Runs
    others: OtherServers | None
    renderings: Renderings
    awaits_engine: bool  # before it listens, since others do
    conversations: Conversations | None  # finds the sessions of clients that name none
    thoughts: KeptThoughts | None  # puts back those that clients drop
    accounting: AccountingLines  # that were left out of prompts
    kept: KeptObjects  # responses, conversations and thoughts
    background: BackgroundResponses

    def __init__(
        self,
        config: ServerConfig,
        service: Service,
        metrics: Metrics,
        advisor: Advisor,
        table: Performer,
    ) -> None:
        super().__init__()
        self.config = config
        self.service = service
        self.metrics = metrics
        self.advisor = advisor
        self.prices = Prices(config.price)
        self.runs = Runs(service)
        self.renderings = Renderings()
        self.others = None
        self.awaits_engine = False
        self.conversations = None
        self.accounting = AccountingLines()
        self.kept = KeptObjects(
            config.kept,
            table,
            lambda: time.monotonic() + service.registry.wall,
            Cipher.of(config.sessions.key_file),
        )
        self.thoughts = KeptThoughts(self.kept) if config.restore_thoughts else None
        self.background = BackgroundResponses(config.kept)
        if "conversations" not in config.without:
            self.conversations = Conversations(service)


def state_of(app: Starlette) -> ServerState:
    """The state of an app that `create_app` made."""
    state = app.state
    assert isinstance(state, ServerState)
    return state


async def other_answers(request: Request) -> list[dict[str, Any]]:
    """What the other servers of the store answer to a GET that this one answers, too."""
    others = state_of(request.app).others
    return [] if others is None else await others.answers(request)


def sees_all(request: Request, tenant: str) -> bool:
    """Whether the tenant may see what all tenants' work makes of the engines.

    A tenant may if it is the only tenant, or the tenant that `metrics_tenant` names.
    """
    config = state_of(request.app).config
    return len(set(config.keys.values())) <= 1 or tenant == config.metrics_tenant


def tenant_of(request: Request) -> str:
    """The tenant of the request's key. Raises Unauthorized if there are keys and it has none."""
    config = state_of(request.app).config
    if not config.keys:
        return OPEN_TENANT
    given = request.headers.get("authorization")
    if given is None:  # as clients of Anthropic's API send a key
        given = f"Bearer {request.headers.get('x-api-key', '')}"
    scheme, *rest = given.split(None, 1) or ("bearer",)
    if scheme.lower() != "bearer":
        raise Unauthorized(
            "the Authorization header does not begin with the word Bearer: send 'Authorization: "
            "Bearer KEY'"
        )
    digest = hashlib.sha256("".join(rest).strip().encode()).digest()
    found = None
    # The request is compared with every key, each in constant time, so timing reveals nothing.
    for key, tenant in config.keys.items():
        if hmac.compare_digest(hashlib.sha256(key.encode()).digest(), digest):
            found = tenant
    if found is None:
        raise Unauthorized("an API key is needed: send 'Authorization: Bearer KEY'")
    return found


def asking(request: Request) -> tuple[Service, str]:
    """The service and the tenant of a request for work.

    Raises Draining while the server shuts down, and Unauthorized. Where several servers share a
    store, a session takes work until it moves; only opening one is refused.
    """
    service = state_of(request.app).service
    if service.lifecycle.draining and service.lifecycle.member is None:
        raise Draining()
    return service, tenant_of(request)


# The dependencies are coroutines because FastAPI runs a plain function in a thread, which costs
# more than any of these does.
async def _service(request: Request) -> Service:
    return state_of(request.app).service


async def _tenant(request: Request) -> str:
    return tenant_of(request)


async def _accepting(request: Request) -> None:
    asking(request)


async def _prices(request: Request) -> Prices:
    return state_of(request.app).prices


Tenant = Annotated[str, Depends(_tenant)]
ServiceDep = Annotated[Service, Depends(_service)]
PricesDep = Annotated[Prices, Depends(_prices)]
ACCEPTING = Depends(_accepting)
