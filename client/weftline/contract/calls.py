"""A call of a graph: its prompt, its placeholders, and how the server runs it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from weftline.contract.bodies import StrictBody
from weftline.contract.errors import InvalidRequest
from weftline.contract.ids import check_id
from weftline.contract.sampling import Sampling
from weftline.contract.tools import Tool, ToolCall, ToolChoice, check_choice, check_tools

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")

MAX_PRIORITY = 100
MAX_ITEMS = 10_000  # messages or segments of a prompt, placeholders of a call, variables of a read


class Criterion(StrEnum):
    """What matters to a reader of a variable (Parrot section 5.1).

    `latency` is the time until the value is ready, and `throughput` the work per second of the
    whole server. `ttft` is the time to the first token, and `tpot` the time per output token.
    """

    LATENCY = "latency"
    THROUGHPUT = "throughput"
    TTFT = "ttft"
    TPOT = "tpot"


class InOut(StrEnum):
    """Whether a call reads or writes a placeholder."""

    IN = "in"
    OUT = "out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment(StrictBody):
    """A part of a prompt: exactly one of constant text, an input or an output.

    `from_var` names the variable that the text was read from. `tokens` are the ids of the text in
    the model's tokenizer, which are then the whole prompt before the call's output.
    """

    text: str | None = None
    input: str | None = None
    output: str | None = None
    from_var: str | None = None
    tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if [self.text, self.input, self.output].count(None) != 2:
            raise InvalidRequest(
                "a segment must have exactly one of 'text', 'input' and 'output'", param="prompt"
            )
        if self.from_var is not None:
            check_id(self.from_var, "from_var")
            if self.text is None:
                raise InvalidRequest("'from_var' needs a 'text'", param="from_var")
        if self.tokens and self.text is None:
            raise InvalidRequest("'tokens' need the 'text' that they are", param="tokens")
        name = self.input if self.input is not None else self.output
        if name is not None and not _NAME.fullmatch(name):
            raise InvalidRequest(f"{name[:40]!r} is not a placeholder name", param="prompt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(StrictBody):
    """One chat message, as segments. An assistant message that ends with an output is generated;
    what stands before the output is the beginning of the message, which the model continues.

    `tool_calls` are the calls of tools in an assistant's message. `tool_call_id` is the id of the
    call whose result a tool's message has. `reasoning_content` are the thoughts before an earlier
    answer. They enter the prompt where the model's template writes them.
    """

    role: str
    content: tuple[Segment, ...] = ()
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    def __post_init__(self) -> None:
        if self.role not in ("system", "user", "assistant", "tool", "developer"):
            raise InvalidRequest(
                f"role {self.role[:40]!r} is none of system, user, assistant, tool, developer",
                param="role",
            )
        if any(s.tokens for s in self.content):
            raise InvalidRequest("a message has no tokens: send its text", param="tokens")
        outputs = [s for s in self.content if s.output is not None]
        if outputs and (self.role != "assistant" or outputs != [self.content[-1]]):
            raise InvalidRequest(
                f"output {outputs[0].output!r} must be the end of an assistant message, and its "
                "only output",
                param=outputs[0].output,
            )
        if self.tool_calls and (self.role != "assistant" or outputs):
            raise InvalidRequest(
                "only an assistant message without outputs may have tool_calls", param="tool_calls"
            )
        if self.tool_call_id is not None and self.role != "tool":
            raise InvalidRequest(
                "only a tool message may have a tool_call_id", param="tool_call_id"
            )
        if self.reasoning_content and (self.role != "assistant" or outputs):
            raise InvalidRequest(
                "only an assistant message without outputs may have reasoning_content",
                param="reasoning_content",
            )


# The inputs of messages in `compacts_to`.
ANSWER, LATER = "answer", "later"

# A segment among messages is an input whose value is one message or a list of messages.
Prompt = tuple[Message | Segment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholder(StrictBody):
    """Binds a name in the prompt to a variable or, for an input, to a value in the request.

    An input has `value` or `semantic_var_id`. The client chooses the `semantic_var_id` of an
    output, which must be unique in its session. Without it the server makes one. `from_var` with a
    `value` names the variable that the value was read from. The transforms of an output are applied
    to the generated text, in order. Those of an input are applied to its value before it enters the
    prompt.
    """

    name: str
    in_out: InOut
    semantic_var_id: str | None = None
    value: Any = None
    from_var: str | None = None
    transforms: tuple[dict[str, Any], ...] = ()
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidRequest(f"{self.name[:40]!r} is not a placeholder name", param="name")
        if self.semantic_var_id is not None:
            check_id(self.semantic_var_id, "semantic_var_id")
        if self.from_var is not None:
            check_id(self.from_var, "from_var")
        if self.in_out is InOut.OUT and (self.value is not None or self.from_var is not None):
            raise InvalidRequest(
                f"output {self.name!r} cannot have a value: leave it out", param=self.name
            )
        if self.in_out is InOut.IN and self.sampling is not None:
            raise InvalidRequest(
                f"input {self.name!r} cannot have sampling: leave it out", param=self.name
            )
        if self.value is not None and self.semantic_var_id is not None:
            raise InvalidRequest(
                f"input {self.name!r} has both a value and a variable: give one", param=self.name
            )


# A value for a variable of a chat template.
TemplateWord = bool | int | float | str
EFFORT = "reasoning_effort"  # the one word that an endpoint with a template of its own gets
MAX_TEMPLATE_WORDS, MAX_TEMPLATE_CHARS = 16, 1024
# What the server itself gives to a template.
_OWN_WORDS = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(StrictBody):
    """One application of a semantic function: a prompt, its placeholders, and how to run it.

    `prompt` is template text (`{{input:x}}`, `{{output:y}}`), segments, or messages of segments.
    The server parses template text once. It never looks for placeholders in segments.

    With `tools` the value of an output is the assistant's message as JSON, in OpenAI's shape:
    `role`, `content` (None where there are only tool calls) and `tool_calls`. `tool_choice` is
    `auto`, `none`, `required` or one function by name. If `parallel_tool_calls` is false, the model
    makes at most one tool call. So it does with `required` and one tool if the field is not set.
    `chat_template_kwargs` are further variables of the model's chat template, such as
    `enable_thinking`. With `separate_reasoning` the text and the value of an output are the answer
    without the model's thoughts, which come beside the value as `reasoning_content`.

    `compacts_to` are the messages that replace the conversation after this call, which summarises
    it. In their texts the input `answer` stands for the call's answer, and `later` for what the
    client does not know yet, such as a tool's result. The engine computes them up to there ahead.

    Waiting calls with a lower `priority` go first. One unit of priority equals ten seconds of
    waiting, so that no call starves.
    """

    name: str
    prompt: Prompt | str
    placeholders: tuple[Placeholder, ...] = ()
    model: str | None = None
    criteria: Criterion | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, TemplateWord] | None = None
    separate_reasoning: bool = False
    compacts_to: tuple[Message, ...] = ()
    priority: int = 0

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > 128 or not self.name.isprintable():
            raise InvalidRequest(
                "a call's name must have 1 to 128 printable characters", param="name"
            )
        if not -MAX_PRIORITY <= self.priority <= MAX_PRIORITY:
            raise InvalidRequest(
                f"priority must be in -{MAX_PRIORITY} to {MAX_PRIORITY}, got {self.priority}",
                param="priority",
            )
        for what, items in (("prompt", self.prompt), ("placeholders", self.placeholders)):
            if not isinstance(items, str) and len(items) > MAX_ITEMS:
                raise InvalidRequest(
                    f"{what} of a call has at most {MAX_ITEMS:,} items, and this has "
                    f"{len(items):,}: split the call",
                    param=what,
                )
        if len(self.prompt) != 2 and any(
            isinstance(item, Segment) and item.tokens for item in self.prompt
        ):
            raise InvalidRequest(
                "tokens are a whole prompt: nothing but the call's output may follow them",
                param="tokens",
            )
        if self.chat_template_kwargs:
            check_words(self.chat_template_kwargs)
        if self.compacts_to:
            check_compaction(self.compacts_to)
        if self.tools:
            check_tools(self.tools)
        if self.tool_choice is not None:
            check_choice(self.tool_choice, self.tools)

    @property
    def offered_tools(self) -> tuple[Tool, ...]:
        """The tools that the prompt describes to the model."""
        return () if self.tool_choice == "none" else self.tools

    @property
    def may_call_several(self) -> bool:
        """Whether an output may call several tools, or one tool several times.

        A small model that must call its only tool repeats the call, so there the default is one:
        with several, SmolLM2 fails four tests of LangChain's suite.
        """
        if self.parallel_tool_calls is not None:
            return self.parallel_tool_calls
        return self.tool_choice != "required" or len(self.tools) > 1

    def segments(self) -> list[Segment]:
        """Every segment in the order of the prompt, including those of messages."""
        assert not isinstance(self.prompt, str), "template text is parsed when it arrives"
        found: list[Segment] = []
        for item in self.prompt:
            if isinstance(item, Message):
                found += item.content
            else:
                found.append(item)
        return found


def check_compaction(messages: tuple[Message, ...]) -> None:
    """Raise InvalidRequest for messages that cannot replace a conversation."""
    if len(messages) > MAX_ITEMS:
        raise InvalidRequest(
            f"compacts_to has at most {MAX_ITEMS:,} messages, and this has {len(messages):,}",
            param="compacts_to",
        )
    inputs = [part.input for one in messages for part in one.content if part.text is None]
    if ANSWER not in inputs or not {*inputs} <= {ANSWER, LATER}:
        raise InvalidRequest(
            f"the messages of compacts_to need an input {ANSWER!r}, and may have the input "
            f"{LATER!r}, besides text",
            param="compacts_to",
        )


def check_words(words: dict[str, TemplateWord]) -> None:
    """Raise InvalidRequest for variables that a chat template may not get."""
    if len(words) > MAX_TEMPLATE_WORDS:
        raise InvalidRequest(
            f"chat_template_kwargs has at most {MAX_TEMPLATE_WORDS} entries, and this has "
            f"{len(words):,}",
            param="chat_template_kwargs",
        )
    for name, value in words.items():
        if not _NAME.fullmatch(name) or name in _OWN_WORDS:
            raise InvalidRequest(
                f"chat_template_kwargs cannot set {name[:40]!r}", param="chat_template_kwargs"
            )
        if isinstance(value, str) and len(value) > MAX_TEMPLATE_CHARS:
            raise InvalidRequest(
                f"chat_template_kwargs.{name} has more than {MAX_TEMPLATE_CHARS} characters",
                param="chat_template_kwargs",
            )
