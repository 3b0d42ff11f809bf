"""The description of an engine that is ready, and the consequences of a missing capability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from weftline_engine.api.ops import Kind

# Kinds whose items an engine computes together.
BATCHED = frozenset({"embed", "rerank"})
# A batch size counts as fast enough if its items a second reach this share of the best. The
# smallest such size is used, so that other applications get the engine sooner.
NEARLY_BEST = 0.9
USUAL_BATCH = 32


class Capability(StrEnum):
    """Abilities of an engine beyond taking a prompt and streaming text back."""

    TOKENS = "tokens"
    CONTEXTS = "contexts"
    FEED = "feed"
    RETENTION = "retention"
    PRIORITY = "priority"
    SALT = "salt"
    USAGE = "usage"
    SAMPLING = "sampling"
    CONSTRAINTS = "constraints"
    LOGPROBS = "logprobs"
    LOGIT_BIAS = "logit_bias"
    REPORTS = "reports"
    UPDATES = "updates"


class Constraint(StrEnum):
    """The kinds of constraints on outputs, by the name in `SamplingParams.constraint`."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"
    STRUCTURAL_TAG = "structural_tag"


# The consequence for a user if an engine lacks one, shown at start and in the graph.
LACKING: Mapping[Capability, str] = MappingProxyType(
    {
        Capability.TOKENS: "takes text, which its endpoint tokenises anew for every call",
        Capability.CONTEXTS: "keeps no contexts: every call sends its whole prompt again",
        Capability.FEED: "starts no prompt before the whole of it is known",
        Capability.RETENTION: "decides alone what its KV cache keeps: keep and free are advice",
        Capability.PRIORITY: "runs calls as it likes: the plan orders only what waits here",
        Capability.SALT: "does not part the KV caches of tenants",
        Capability.USAGE: "does not say how much of a prompt came out of a cache",
        Capability.SAMPLING: "takes no sampling parameter that OpenAI's API lacks",
        Capability.CONSTRAINTS: "holds outputs to a JSON schema at most, to no regex, choice or"
        " grammar",
        Capability.LOGPROBS: "returns no log probabilities",
        Capability.LOGIT_BIAS: "takes no logit_bias",
        Capability.REPORTS: "does not say what its KV cache holds of a context",
        Capability.UPDATES: "takes no new hints for a call that it has: a later criterion reaches"
        " only what waits here",
    }
)


WORDS = "words:"
OTHER_WORDS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCosts:
    """The seconds to compute KV cache again, and to copy it, measured when the engine starts.

    A step of a prompt has at most `chunk` tokens. It takes `step_s` seconds, and `fill_s` seconds
    more for each token. Copying a token to host memory, or back, takes `copy_s` seconds. The host
    memory has room for `host_tokens` tokens; 0 means that contexts are not copied.
    """

    step_s: float
    fill_s: float
    chunk: int
    copy_s: float = 0.0
    host_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The model and the abilities of an engine, announced once when it is ready.

    `tokenizer` is the path of a tokenizer.json, or None if the engine takes text. For a model whose
    tokens are words it is WORDS and a number n. The words `w0`, `w1` and so on have the ids below
    n, and other words have OTHER_WORDS ids after them. `chat_template` is Jinja text of the model's
    publisher, never of a request. `context_limit` and `kv_tokens` count tokens,
    `kv_bytes_per_token` bytes. An engine that copies each block to host memory when it was
    computed has room for `host_tokens` tokens there. `node` names the machine of a remote engine.
    An engine that `takes_messages` renders chats with a template of its own. `vocabulary` is the
    number of token ids, None if unknown. `constraints` are the kinds of constraints that its
    outputs satisfy.

    `step_profile` is measured at start (Parrot's Figure 10). It has ascending pairs: the tokens in
    flight, and the seconds of a step in which all their sequences decode. It is empty if unknown.
    `batch_profile` is measured at start by engines that work on items. It has the items of a batch,
    their tokens in all, and the seconds of the batch. `kv_costs` is None where nothing was
    measured. An engine that `drafts` verifies guesses of several tokens in one step. An open prompt
    that has grown by fewer than `fill_tokens` gives it nothing to fill early.

    `tools` are the tools that an engine of kind "tool" runs: the name, description and parameters
    that models see, the effects, the most seconds of a call, and whether the tool reads its call in
    parts.

    An engine that `is_shared` may serve several servers. It reports what the others have on it. An
    engine whose model's state is kept at few places `wants_borders`, to keep it where prompts part.
    """

    model: str
    kinds: tuple[str, ...] = (Kind.FILL, Kind.GENERATE)
    tokenizer: str | None = None
    chat_template: str | None = None
    bos_token: str = ""
    eos_token: str = ""
    context_limit: int = 8192
    kv_tokens: int | None = None
    kv_bytes_per_token: int | None = None
    host_tokens: int = 0
    max_running: int = 64
    dtype: str | None = None
    device: str | None = None
    node: str = ""
    takes_messages: bool = False
    vocabulary: int | None = None
    capabilities: tuple[Capability, ...] = tuple(Capability)
    constraints: tuple[Constraint, ...] = tuple(Constraint)
    default_sampling: dict[str, float] = field(default_factory=dict)
    step_profile: tuple[tuple[int, float], ...] = ()
    batch_profile: tuple[tuple[int, int, float], ...] = ()
    drafts: bool = False
    fill_tokens: int = 16
    kv_costs: KvCosts | None = None
    tools: tuple[Mapping[str, object], ...] = ()
    is_shared: bool = False
    wants_borders: bool = False

    def efficient_items(self, kind: str) -> int:
        """The smallest batch size whose items a second are near the best (Teola section 4.3).

        The size is USUAL_BATCH if nothing was measured, and 1 for kinds that are not computed in
        batches.
        """
        if kind not in BATCHED:
            return 1
        rates = [(items, items / max(seconds, 1e-9)) for items, _, seconds in self.batch_profile]
        best = max((rate for _, rate in rates), default=0.0)
        near = [items for items, rate in rates if rate >= NEARLY_BEST * best]
        return min(near, default=USUAL_BATCH)

    def efficient_tokens(self, kind: str) -> int | None:
        """The tokens of the batch that `efficient_items` gives. None if no larger batch was
        measured, because then a larger one may be faster.
        """
        items = self.efficient_items(kind)
        if not any(more > items for more, _, _ in self.batch_profile):
            return None
        return next((tokens for size, tokens, _ in self.batch_profile if size == items), None)

    @property
    def lacking(self) -> tuple[str, ...]:
        """The consequences of each missing capability, as clauses that follow the engine's name.

        An engine that takes no prompts lacks nothing, because the capabilities are about prompts.
        """
        if not {Kind.FILL, Kind.GENERATE} & set(self.kinds):
            return ()
        return tuple(text for one, text in LACKING.items() if one not in self.capabilities)
