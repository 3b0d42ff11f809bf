"""The settings of engines that are endpoints, and those of an endpoint with OpenAI's API."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from weftline_engine.api.engine_option import CONNECTS, OPENAI, RUNNING, setting
from weftline_engine.remote.openai.scheduling import EndpointScheduler


class Dialect(StrEnum):
    """Which of OpenAI's two generate APIs to call."""

    CHAT = "chat"  # chat/completions only; a text prompt becomes one user message
    COMPLETIONS = "completions"  # completions only; chats are refused, their template is unknown
    BOTH = "both"  # chat/completions for messages, completions for text


class ToolSupport(StrEnum):
    """How the tools of a chat reach an endpoint. `AUTO` sends fields until they are refused."""

    AUTO = "auto"
    NATIVE = "native"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """An endpoint that runs already.

    `served` is its name of the model; None takes its first. Without a name of an engine, `connect`
    is an endpoint that speaks OpenAI's API. `connect_key_env` names the environment
    variable that holds the key of `connect`, so that no file has to hold it. `kv_events` is where
    it publishes its KV events. Of a vLLM's data-parallel ranks, the engine is
    `data_parallel_rank`.
    """

    connect: str | None = setting(None, RUNNING, "address of a running endpoint", metavar="URL")
    connect_key_env: str = setting("WEFTLINE_CONNECT_KEY", RUNNING)
    served: str | None = setting(
        None,
        RUNNING,
        "the endpoint's name of the model (default: the first that it lists)",
        metavar="NAME",
    )
    kv_events: str | None = setting(
        None,
        (f"vllm{CONNECTS}", "sglang"),
        "where the vLLM or SGLang of --connect publishes its KV events, as tcp://HOST:5557; with a "
        "comma and where it sends missed ones again (default: nowhere)",
        metavar="ADDRESS",
    )
    data_parallel_rank: int | None = setting(
        None,
        (f"vllm{CONNECTS}",),
        "of the ranks of the vLLM of --connect, send all calls to this one (default: vLLM chooses)",
        metavar="N",
        type=int,
    )
    context_limit: int | None = setting(
        None,
        ("vllm", "llamacpp", *(one for one in RUNNING if one != "sglang")),
        "longest prompt plus output in tokens (default: what the endpoint states, else 8192)",
        metavar="TOKENS",
        type=int,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAISettings:
    """How to talk to an endpoint that has OpenAI's API.

    `extras` says that the endpoint accepts the parameters that vLLM, SGLang and llama.cpp add to
    OpenAI's. Other endpoints refuse a request with such a parameter. `endpoint_scheduler` is the
    endpoint's own: requests then have fields with each call's place in the plan.
    """

    dialect: Dialect = setting(
        Dialect.BOTH,
        OPENAI,
        "which OpenAI API to call: chat/completions, completions, or the one that fits the call "
        "(default: both)",
        choices=Dialect,
    )
    extras: bool = setting(
        False,
        OPENAI,
        "send sampling parameters that OpenAI lacks (default: leave them out)",
        is_flag=True,
    )
    endpoint_tools: ToolSupport = setting(
        ToolSupport.AUTO,
        OPENAI,
        "send tools in the fields of OpenAI's API (native), or describe them in the prompt (text); "
        "auto sends fields until the endpoint refuses them (default: auto)",
        choices=ToolSupport,
    )
    endpoint_scheduler: EndpointScheduler = setting(
        EndpointScheduler.NONE,
        OPENAI,
        "tell the endpoint's scheduler, in its own fields, the place of each call in the plan and "
        "the session (default: none)",
        choices=EndpointScheduler,
    )
