"""The settings of llama-servers that generate, embed or rerank, and their command lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from weftline_engine.remote.llamacpp.llama_settings import LlamaSettings
from weftline_engine.remote.llamacpp.state_cut import StateCut
from weftline_engine.remote.openai.breaker import BreakerConfig
from weftline_engine.remote.openai.endpoint import EndpointConfig

# Slots of a child, and tokens of each, unless the settings say otherwise. llama.cpp reserves the
# memory of all slots when it starts: 1.5 GiB for SmolLM2-135M, and 9 GiB for 8B parameters.
USUAL_SLOTS = 8
USUAL_CONTEXT = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaServerConfig(LlamaSettings):
    """Settings of a llamacpp engine. Raises ValueError unless it is started or connected to.

    `model` is a GGUF file, and `words` a directory with its tokenizer, or None if that could not be
    read: then llama-server tokenises. `connect` is the address of a llama-server that already runs.
    It must list the model as `served`, unless that is None. `slots` is how many calls run at once,
    and `context` the tokens that each may have. `cut` says where the states of the file's model can
    be cut, and a copy of one has `state_bytes`.
    """

    connect: EndpointConfig | None = None
    served: str | None = None
    model: Path | None = None
    words: Path | None = None
    name: str | None = None
    slots: int | None = None
    context: int | None = None
    kv_tokens: int | None = None
    cut: StateCut = StateCut.ANYWHERE
    state_bytes: int = 0
    ready_s: float = 900.0  # seconds for reading the weights
    breaker: BreakerConfig = field(default_factory=BreakerConfig)

    def __post_init__(self) -> None:
        if (self.llama_server is None) == (self.connect is None):
            raise ValueError("llama.cpp needs either a llama-server to start or --connect URL")
        if self.llama_server is not None and self.model is None:
            raise ValueError("llama-server needs a GGUF file")

    @property
    def own_slots(self) -> int:
        """The slots of a child."""
        return self.slots or USUAL_SLOTS

    def command(self, folder: Path) -> list[str]:
        """The child's command line. It listens on a unix socket in `folder`, and writes slots
        there. `llama_arguments` come last, so they count.

        Each slot has a KV cache of its own. Prompts that a slot loses go to files of ours. Where
        files cannot be continued, they go to llama-server's cache in memory (--cache-ram, 8 GiB by
        default), from the least similarity of a slot and a prompt on.
        """
        assert self.llama_server is not None
        total = self.kv_tokens or self.own_slots * (self.context or USUAL_CONTEXT)
        options = {
            "--model": str(self.model),
            "--host": str(folder / SOCKET),
            "--parallel": str(self.own_slots),
            "--ctx-size": str(total),
            "--slot-save-path": f"{folder}/",
            **({"--cache-ram": "0"} if self.cut.copies else {"--slot-prompt-similarity": "0.0001"}),
        }
        words = (word for option in options.items() for word in option)
        return [self.llama_server, *words, "--metrics", *self.llama_arguments]


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaPoolingConfig(LlamaSettings):
    """Settings of a llama-server that embeds, or that `reranks`.

    `model` is a GGUF file. A text may have `context` tokens, and `batch` texts are in a request.
    """

    name: str
    model: Path
    reranks: bool
    batch: int = 32
    slots: int = 4
    context: int = 2048
    ready_s: float = 900.0  # seconds for reading the weights

    def command(self, folder: Path) -> list[str]:
        """The child's command line. llama-server refuses a text that is longer than a batch that
        it computes at once."""
        options = {
            "--model": str(self.model),
            "--host": str(folder / SOCKET),
            "--parallel": str(self.slots),
            "--ctx-size": str(self.slots * self.context),
            "--batch-size": str(self.context),
            "--ubatch-size": str(self.context),
        }
        words = (word for option in options.items() for word in option)
        kind = "--reranking" if self.reranks else "--embeddings"
        assert self.llama_server is not None
        return [self.llama_server, *words, kind, *self.llama_arguments]


SOCKET = "http.sock"
