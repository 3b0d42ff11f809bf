"""What `weftline serve --for coding-agent` does: room for long sessions, and a line a client.

A coding agent's session begins with about 20,000 tokens and ends near 115,000. llama-server
reserves its KV cache when it starts, so the number of sessions follows from the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from weftline_server.commands.default_model import Machine
from weftline_server.commands.engine_spec import EngineSpec

CODING_AGENT = "coding-agent"
MOST_CONTEXT = 131_072  # tokens of a session
LEAST_CONTEXT = 32_768  # below that, a session ends soon after it began
MOST_SESSIONS = 4  # more of one user do not run at once
# Of the memory beside the weights. The rest is for llama-server's buffers, the server and others.
SHARE = 0.6
KV_BYTES = 2  # of a number: llama-server keeps keys and values in 16 bits
ROUNDS = 1024  # tokens


@dataclass(frozen=True, slots=True)
class KvShape:
    """What decides how much KV cache a model needs. `context` is what it was trained for."""

    token_bytes: int
    weight_bytes: int
    context: int


@dataclass(frozen=True, slots=True)
class Room:
    """How many sessions run at once, and the tokens of each."""

    sessions: int
    context: int

    @property
    def is_short(self) -> bool:
        return self.context < LEAST_CONTEXT


def shape_of(values: Mapping[str, Any], weight_bytes: int) -> KvShape | None:
    """The shape of a GGUF file's model, by its settings; None where they do not tell it.

    Layers with windows or a recurrent state need less than this counts.
    """
    prefix = values.get("general.architecture")

    def number(name: str) -> int:
        found = values.get(f"{prefix}.{name}")
        found = max(found) if isinstance(found, list | tuple) and found else found
        return found if isinstance(found, int) else 0

    layers, heads, width = (
        number(name) for name in ("block_count", "attention.head_count", "embedding_length")
    )
    if not (layers and heads and width):
        return None
    kv_heads = number("attention.head_count_kv") or heads
    key = number("attention.key_length") or width // heads
    value = number("attention.value_length") or key
    token_bytes = layers * kv_heads * (key + value) * KV_BYTES
    return KvShape(token_bytes, weight_bytes, number("context_length") or MOST_CONTEXT)


def tokens_of(shape: KvShape, machine: Machine) -> int:
    """The tokens whose keys and values this machine has room for."""
    memory = machine.gpu_bytes or machine.free_bytes
    return int(max(0, memory - shape.weight_bytes) * SHARE) // shape.token_bytes


def room_of(shape: KvShape, machine: Machine) -> Room:
    """The room for sessions on this machine: as long as the model allows, and then several."""
    tokens = tokens_of(shape, machine)
    longest = min(shape.context, MOST_CONTEXT)
    sessions = max(1, min(MOST_SESSIONS, tokens // longest))
    context = min(longest, tokens // sessions)
    return Room(sessions, max(ROUNDS, context // ROUNDS * ROUNDS))


def sized(spec: EngineSpec, room: Room) -> EngineSpec:
    """The engine with this room, where its operator has not said another."""
    limit = spec.endpoint.context_limit or room.context
    endpoint = replace(spec.endpoint, context_limit=limit)
    return replace(spec, max_running=spec.max_running or room.sessions, endpoint=endpoint)


def said_of(room: Room) -> str:
    """What the operator is told of the room."""
    many = f"{room.sessions} sessions" if room.sessions > 1 else "1 session"
    said = f"room for {many} of {room.context:,} tokens"
    if room.is_short:
        said += (
            "; a coding agent begins with about 20,000, so choose a smaller model or more memory"
        )
    return said


def lines_for(url: str, model: str) -> Iterator[str]:
    """How to start each client on this server."""
    key, base = "none", f"{url}/v1"
    provider = f'{{name="weftline",base_url="{base}",wire_api="responses"}}'
    yield (
        f"Claude Code: ANTHROPIC_BASE_URL={url} ANTHROPIC_AUTH_TOKEN={key} ANTHROPIC_MODEL={model} "
        f"ANTHROPIC_DEFAULT_HAIKU_MODEL={model} claude"
    )
    yield (
        f"Codex: codex -m {model} -c model_provider=weftline "
        f"-c 'model_providers.weftline={provider}'"
    )
    yield f"aider: OPENAI_API_BASE={base} OPENAI_API_KEY={key} aider --model openai/{model}"
    yield (
        f"opencode, Continue, Cline: a provider of type OpenAI-compatible, base URL {base}, key "
        f"{key}, model {model}"
    )
