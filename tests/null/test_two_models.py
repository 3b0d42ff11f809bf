"""A graph over two models: each call goes to its own, and the values pass between them."""

from __future__ import annotations

import httpx2

from tests.null.asgi import Server, call
from weftline_engine.pretend.null import NullConfig, NullEngine, NullMode
from weftline_server.app import create_app
from weftline_server.config import ServerConfig


async def test_a_graph_over_two_models() -> None:
    """Calls that name no model go to the first configured model."""
    echo = NullConfig(model="echo")
    judge = NullConfig(model="judge", mode=NullMode.SCRIPT, script=(("river", "good"),))
    makers = {"e": lambda: NullEngine(echo), "j": lambda: NullEngine(judge)}
    app = create_app(ServerConfig(), makers)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://t") as http,
    ):
        server = Server(app, http)
        session = await server.session()
        await server.submit(
            session,
            call("draft", "A river.{{output:d}}", d="d"),
            {
                **call("judge", "Is it good? {{input:d}}{{output:v}}", d="d", v="v"),
                "model": "judge",
            },
            call("tell", "It is {{input:v}}.{{output:t}}", v="v", t="t"),
        )
        assert (await server.get(session, "t")).json()["value"] == "It is good."
        calls = (await server.graph(session))["calls"]
        assert [(c["model"], c["engine"]) for c in calls] == [
            ("echo", "e"),
            ("judge", "j"),
            ("echo", "e"),
        ]
