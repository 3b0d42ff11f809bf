"""The bodies of OpenAI's completion requests, and how they become calls of a session.

A field that is not here is looked up in `surface`: one that would change what may be answered is a
400 that names it, and one that only advises is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, cast

from pydantic import Discriminator, Tag

from weftline.contract.bodies import LooseBody
from weftline.contract.calls import EFFORT, TemplateWord
from weftline.contract.errors import InvalidRequest
from weftline.contract.parameters import common
from weftline.contract.protocol import (
    MAX_ITEMS,
    MAX_PRIORITY,
    Call,
    Criterion,
    InOut,
    Message,
    Placeholder,
    Sampling,
    Segment,
)
from weftline.contract.tools import ToolCall
from weftline_server.http.openai.constraint_fields import ConstraintFields
from weftline_server.http.openai.content import Content, ThoughtPart, text_of, thoughts_of
from weftline_server.http.openai.provenance import PieceInputs, Provenance
from weftline_server.http.openai.tool_types import AnyChatTool, ChatChoice, chosen, offered
from weftline_server.session.session import ServerSession

OUTPUT = "out"
MAX_CHOICES = 128  # of one request: `n` times the number of its prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage(LooseBody):
    """One message of a chat. Thoughts are taken under the names that services give them."""

    role: str
    content: Content | None = None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: tuple[ThoughtPart, ...] | None = None
    thinking_blocks: tuple[ThoughtPart, ...] | None = None
    refusal: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.content, tuple) and len(self.content) > MAX_ITEMS:
            raise InvalidRequest(
                f"content of a message has at most {MAX_ITEMS:,} parts", param="content"
            )

    @property
    def text(self) -> str:
        """The content as one text, "" where there is none."""
        return text_of(self.content) or self.refusal or ""

    @property
    def thoughts(self) -> str | None:
        """The thoughts before the answer; None if the message has none."""
        said = self.reasoning_content or self.reasoning or thoughts_of(self.reasoning_details)
        return said or thoughts_of(self.thinking_blocks) or thoughts_of(self.content) or None


def check_parts(messages: Iterable[ChatMessage]) -> None:
    """Raise InvalidRequest for the first part of a message that is no text, with its place."""
    for index, message in enumerate(messages):
        text_of(message.content, f"messages.{index}.content")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions(LooseBody):
    """The options of a stream besides the text. As in vLLM, `continuous_usage_stats` counts only
    with `include_usage`."""

    continuous_usage_stats: bool = False
    include_usage: bool = False

    @property
    def counts(self) -> bool:
        """Whether each chunk has the usage so far."""
        return self.include_usage and self.continuous_usage_stats


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHints(LooseBody):
    """What NVIDIA Dynamo's clients say of a request. A higher priority goes first."""

    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoFields(LooseBody):
    """The object `nvext`."""

    agent_hints: AgentHints | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFields(ConstraintFields):
    """The fields that say how the answer is generated. All of OpenAI's endpoints take them."""

    stop: str | tuple[str, ...] | None = None

    def sampling_of(self, max_tokens: int | None) -> Sampling:
        """The sampling of an output of at most `max_tokens`. Raises InvalidRequest."""
        asked = self.constraint_asked()
        return Sampling(
            max_tokens=max_tokens,
            **common(self),
            stop=(self.stop,) if isinstance(self.stop, str) else self.stop or (),
            constraint=None if asked is None else asked[1],
        )

    def name_field(self, error: BaseException) -> None:
        """Name the field in which the client gave the constraint, if the constraint is at fault."""
        if isinstance(error, InvalidRequest) and error.param == "constraint":
            asked = self.constraint_asked()
            error.param = error.param if asked is None else asked[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFields(SamplingFields):
    """The fields that chat and text completions share."""

    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int | None = None
    # Of conversations that are told apart by how they grow, those of one key or user are compared.
    prompt_cache_key: str | None = None
    user: str | None = None
    # Ours: the session to run in, the priority (lower goes first, as in vLLM), and the criterion.
    session_id: str | None = None
    priority: int = 0
    nvext: DynamoFields | None = None
    criteria: Criterion | None = None

    def check(self) -> None:
        """Raise InvalidRequest for a number of choices that is out of range."""
        if self.n is not None and not 1 <= self.n <= MAX_CHOICES:
            raise InvalidRequest(f"n must be in 1 to {MAX_CHOICES}, got {self.n}", param="n")

    @property
    def own_priority(self) -> int:
        """`priority`, or else that of the agent's hints, where higher goes first."""
        hints = None if self.nvext is None else self.nvext.agent_hints
        if self.priority or hints is None:
            return self.priority
        return -max(-MAX_PRIORITY, min(MAX_PRIORITY, hints.priority))

    def sampling(self) -> Sampling:
        """The sampling of the first choice; `choices` makes those of the others."""
        limit = self.max_completion_tokens
        return self.sampling_of(self.max_tokens if limit is None else limit)

    def choices(self, call: Call) -> tuple[Call, ...]:
        """`call` once for each of the `n` choices; a seed grows by one from choice to choice."""
        *inputs, output = call.placeholders
        sampling = output.sampling
        if sampling is None or sampling.seed is None:
            return (call,) * (self.n or 1)
        seeds = (sampling.seed + index for index in range(self.n or 1))
        outputs = (replace(output, sampling=replace(sampling, seed=seed)) for seed in seeds)
        return tuple(replace(call, placeholders=(*inputs, output)) for output in outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(SharedFields):
    """The body of POST /v1/chat/completions."""

    messages: tuple[ChatMessage, ...]
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: tuple[AnyChatTool, ...] | None = None
    tool_choice: ChatChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, TemplateWord] | None = None
    reasoning_effort: str | None = None
    continue_final_message: bool | None = None
    weftline: Provenance | None = None  # ours: its run, and where its text comes from

    def __post_init__(self) -> None:
        if len(self.messages) >= MAX_ITEMS:
            raise InvalidRequest(
                f"messages has fewer than {MAX_ITEMS:,} items, and this has "
                f"{len(self.messages):,}: shorten the chat",
                param="messages",
            )
        check_parts(self.messages)

    @property
    def wants_logprobs(self) -> bool:
        """Whether the answer shows the log probabilities of its tokens."""
        return bool(self.logprobs)

    def _begun(self, last: Message) -> tuple[Segment, ...]:
        """The text of the last message, which the answer continues. Raises InvalidRequest."""
        is_text = not last.tool_calls and not last.reasoning_content
        if last.role != "assistant" or not is_text or not self.messages[-1].text.strip():
            raise InvalidRequest(
                "continue_final_message needs a last message of the assistant that has text, no "
                "tool calls and no thoughts",
                param="continue_final_message",
            )
        return last.content

    def calls(self, session: ServerSession | None, *, renders: bool) -> tuple[Call, ...]:
        """The request as calls of `session` with one output each, one call for each choice.

        `renders` says that the model's template runs here. A template elsewhere gets the effort
        alone.
        """
        if not self.messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs", param="top_logprobs")
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        tools, choice = chosen(self.tool_choice, offered(self.tools or (), "tools"))
        said = self.weftline or Provenance()
        inputs = PieceInputs(session, {OUTPUT})
        messages = [
            Message(
                role=message.role,
                content=inputs.segments(said.pieces(index, message.text)),
                name=message.name,
                tool_calls=message.tool_calls or (),
                tool_call_id=message.tool_call_id,
                reasoning_content=message.thoughts,
            )
            for index, message in enumerate(self.messages)
        ]
        begun: tuple[Segment, ...] = ()
        if self.continue_final_message:
            *messages, last = messages
            begun = self._begun(last)
        answer = Message(role="assistant", content=(*begun, Segment(output=OUTPUT)))
        call = Call(
            name=said.name,
            prompt=(*messages, answer),
            placeholders=(*inputs.placeholders, _output(self.sampling(), logprobs)),
            model=self.model,
            priority=self.own_priority,
            criteria=self.criteria,
            tools=tools,
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
            chat_template_kwargs=self._template_words(renders) or None,
            compacts_to=said.compacts_to,
        )
        return self.choices(call)

    def _template_words(self, renders: bool) -> dict[str, TemplateWord]:
        """The words for the template: the effort in the names that templates have for it, and those
        that the client gives itself, which go first."""
        words: dict[str, TemplateWord] = {}
        if self.reasoning_effort is not None:
            words[EFFORT] = self.reasoning_effort
            if renders and self.reasoning_effort == "none":
                words["enable_thinking"] = False
        return {**words, **(self.chat_template_kwargs or {})}


def _kind_of_prompt(value: Any) -> str:
    match value:
        case [int(), *_]:
            return "Tokens"
        case [[*_], *_]:
            return "TokenLists"
        case [*_]:
            return "Texts"
    return "Text"


PromptOrPrompts = Annotated[
    Annotated[str, Tag("Text")]
    | Annotated[tuple[str, ...], Tag("Texts")]
    | Annotated[tuple[int, ...], Tag("Tokens")]
    | Annotated[tuple[tuple[int, ...], ...], Tag("TokenLists")],
    Discriminator(_kind_of_prompt),
]
Decode = Callable[[Sequence[int], str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest(SharedFields):
    """The body of POST /v1/completions. Each of several prompts has `n` choices, in order."""

    prompt: PromptOrPrompts
    logprobs: int | None = None

    @property
    def wants_logprobs(self) -> bool:
        """Whether the answer shows the log probabilities of its tokens."""
        return self.logprobs is not None

    @property
    def weftline(self) -> None:
        """A text completion has no `weftline` object."""

    @property
    def prompts(self) -> tuple[str | tuple[int, ...], ...]:
        """The texts, or the tokens of each prompt."""
        if isinstance(self.prompt, str):
            return (self.prompt,)
        found: list[str | tuple[int, ...]] = []
        for one in self.prompt:
            if isinstance(one, int):
                return (cast(tuple[int, ...], self.prompt),)
            found.append(one)
        return tuple(found)

    @property
    def has_tokens(self) -> bool:
        """Whether a prompt is one of tokens."""
        return any(isinstance(one, tuple) for one in self.prompts)

    def calls(self, session: ServerSession, decode: Decode) -> tuple[Call, ...]:
        """The request as calls of `session` with one output each, one call for each choice.

        `decode` makes the text of tokens.
        """
        prompts = self.prompts
        if not prompts or not all(prompts):
            raise InvalidRequest(
                "prompt must be a non-empty text or list of tokens, or a list of them",
                param="prompt",
            )
        if len(prompts) * (self.n or 1) > MAX_CHOICES:
            raise InvalidRequest(
                f"a request may have at most {MAX_CHOICES} choices", param="prompt"
            )
        output = _output(self.sampling(), self.logprobs)
        calls = (
            Call(
                name="completion",
                prompt=(_segment(prompt, decode), Segment(output=OUTPUT)),
                placeholders=(output,),
                model=self.model,
                priority=self.own_priority,
                criteria=self.criteria,
            )
            for prompt in prompts
        )
        return tuple(choice for call in calls for choice in self.choices(call))


def _segment(prompt: str | tuple[int, ...], decode: Decode) -> Segment:
    if isinstance(prompt, str):
        return Segment(text=prompt)
    return Segment(text=decode(prompt, "prompt"), tokens=prompt)


def _output(sampling: Sampling, logprobs: int | None) -> Placeholder:
    """The placeholder of a call's only output; `logprobs` is the number of alternatives, if any."""
    if logprobs is not None:
        sampling = replace(sampling, logprobs=logprobs)
    return Placeholder(name=OUTPUT, in_out=InOut.OUT, sampling=sampling)
