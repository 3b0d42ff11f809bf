"""What the operator decides about vLLM, and the command line that this makes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from weftline_engine.openai.breaker import BreakerConfig
from weftline_engine.openai.endpoint import EndpointConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMConfig:
    """`model` is the directory, whose tokenizer and template the server uses. Either `python`, the
    interpreter that has vLLM, or `connect`, the address of one that runs; such a one is asked for
    `served`, its name for the model (None: its first). `arguments` go to a child as they are.
    """

    model: Path
    python: str | None = None
    connect: EndpointConfig | None = None
    served: str | None = None
    name: str | None = None
    dtype: str = "bfloat16"
    max_model_len: int | None = None
    max_running: int = 64
    tensor_parallel: int = 1
    arguments: tuple[str, ...] = ()
    ready_s: float = 900.0  # for loading weights, and on GPUs for compiling
    breaker: BreakerConfig = field(default_factory=BreakerConfig)

    def __post_init__(self) -> None:
        if (self.python is None) == (self.connect is None):
            raise ValueError("vLLM needs either --engine-python or --connect")

    @property
    def announced(self) -> str:
        return self.name or self.model.name

    def command(self, socket: Path) -> list[str]:
        """The child's command line: it listens on `socket` alone."""
        assert self.python is not None
        words = [
            *(self.python, "-m", "vllm.entrypoints.openai.api_server", "--uds", str(socket)),
            *("--model", str(self.model), "--served-model-name", self.announced),
            *("--dtype", self.dtype, "--max-num-seqs", str(self.max_running)),
            # Numbers from the plan decide there, too; without this vLLM refuses a priority.
            *("--scheduling-policy", "priority"),
            *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
            *("--disable-uvicorn-access-log", "--disable-access-log-for-endpoints", "/health"),
        ]
        if self.max_model_len is not None:
            words += ["--max-model-len", str(self.max_model_len)]
        if self.tensor_parallel > 1:
            words += ["--tensor-parallel-size", str(self.tensor_parallel)]
        return [*words, *self.arguments]
