"""What becomes of every field of OpenAI's, vLLM's and SGLang's requests.

A field that changes what may be answered is served, or refused with a 400 that names it. A field
that only advises may be ignored. The served fields are those of the request's class. This table has
the others. A field that no table knows is ignored, since clients keep adding new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from weftline.contract.errors import InvalidRequest
from weftline_server.http.openai.message_fields import check_messages
from weftline_server.http.openai.requests import ChatRequest, CompletionRequest
from weftline_server.http.openai.response_requests import ResponsesRequest


class OpenAIRoute(StrEnum):
    """The three routes, by their path."""

    CHAT = "chat/completions"
    TEXT = "completions"
    RESPONSES = "responses"


class Treatment(StrEnum):
    """What becomes of a field."""

    SERVED = "served"
    REFUSED = "refused"
    ADVICE = "advice"


KINDS: Mapping[OpenAIRoute, type] = {
    OpenAIRoute.CHAT: ChatRequest,
    OpenAIRoute.TEXT: CompletionRequest,
    OpenAIRoute.RESPONSES: ResponsesRequest,
}
_ALL = tuple(OpenAIRoute)


@dataclass(frozen=True, slots=True)
class NotServed:
    """A field that is not served and would change the answer. null and the values `neutral` pass,
    and what `takes` says of a value in its body. `says` tells what to do."""

    name: str
    neutral: tuple[Any, ...] = ()
    says: str = "is not served: leave it out"
    of: tuple[OpenAIRoute, ...] = _ALL
    takes: Callable[[Any, Mapping[str, Any]], bool] | None = None

    def passes(self, value: Any, body: Mapping[str, Any]) -> bool:
        """Whether the field has a value that changes nothing."""
        if value is None or any(type(one) is type(value) and one == value for one in self.neutral):
            return True
        return self.takes is not None and self.takes(value, body)


_OFF = (False,)
_LACKS = "asks for what the answer does not have: leave it out"
_CHAT, _TEXT, _RESPONSES = (OpenAIRoute.CHAT,), (OpenAIRoute.TEXT,), (OpenAIRoute.RESPONSES,)
_BY_CHATS = "is served by chats: use chat/completions"
_OPENS = "is the opposite of continue_final_message: leave it out"
_LOGPROBS = "message.output_text.logprobs"


def _is_n(value: Any, body: Mapping[str, Any]) -> bool:
    return bool(value == (body.get("n") or 1))


def _opens(value: Any, body: Mapping[str, Any]) -> bool:
    """A message that is continued needs no beginning, and any other answer has one."""
    return isinstance(value, bool) and value is not bool(body.get("continue_final_message"))


def _no_logprobs(value: Any, body: Mapping[str, Any]) -> bool:
    return isinstance(value, list) and _LOGPROBS not in value


REFUSED: tuple[NotServed, ...] = (
    # What else than text would be read or written.
    NotServed("audio"),
    NotServed("modalities", (["text"], [])),
    NotServed("web_search_options"),
    NotServed("moderation"),
    NotServed("functions", ([],), "is not served: use tools"),
    NotServed("function_call", ("none", "auto"), "is not served: use tool_choice"),
    NotServed("tools", ([],), _BY_CHATS, _TEXT),
    NotServed("tool_choice", ("none", "auto"), _BY_CHATS, _TEXT),
    # Other prompts than the messages or the text.
    NotServed("prompt", (), "is not served: send the input", _RESPONSES),
    NotServed("context_management", ([],), of=_RESPONSES),
    NotServed("previous_input_messages", ([],), of=_RESPONSES),
    NotServed("input_ids", ([],)),
    NotServed("prompt_embeds", ([],)),
    NotServed("session_params", ({},)),
    NotServed("documents", ([],)),
    NotServed("chat_template"),
    NotServed("chat_template_kwargs", ({},), of=_TEXT),
    NotServed("add_generation_prompt", (), _OPENS, _CHAT, _opens),
    NotServed("add_generation_prompt", (True,), of=(OpenAIRoute.TEXT, OpenAIRoute.RESPONSES)),
    NotServed("continue_final_message", _OFF, _BY_CHATS, (OpenAIRoute.TEXT, OpenAIRoute.RESPONSES)),
    NotServed("add_special_tokens", _OFF, of=(OpenAIRoute.CHAT, OpenAIRoute.RESPONSES)),
    NotServed("add_special_tokens", (True,), of=_TEXT),
    NotServed("truncate_prompt_tokens"),
    NotServed("suffix", ("",)),
    NotServed("task"),
    # Other models, and other rules for the next token.
    NotServed("lora_path", ([],)),
    NotServed("best_of", (1,), "is served if it equals n: leave it out", takes=_is_n),
    NotServed("use_beam_search", _OFF),
    NotServed("allowed_token_ids"),
    NotServed("bad_words", ([],)),
    NotServed("logits_processors", ([],)),
    NotServed("custom_logit_processor", ([], "")),
    NotServed("custom_params", ({},)),
    NotServed("vllm_xargs", ({},)),
    NotServed("watermark", ({},)),
    NotServed("watermarking", _OFF),
    NotServed("thinking"),
    NotServed("thinking_token_budget"),
    NotServed("guided_whitespace_pattern"),
    # Where the answer ends, and what of it is shown.
    NotServed("stop_regex", ([], "")),
    NotServed("include_stop_str_in_output", _OFF),
    NotServed("no_stop_trim", _OFF),
    NotServed("repetition_detection"),
    NotServed("skip_special_tokens", (True,)),
    NotServed("include_reasoning", (True,)),
    NotServed("separate_reasoning", (True,)),
    NotServed("stream_reasoning", (True,)),
    NotServed("echo", _OFF),
    NotServed("max_tokens", (), "is named max_output_tokens in responses", _RESPONSES),
    NotServed("max_completion_tokens", (), "is named max_output_tokens in responses", _RESPONSES),
    NotServed("n", (1,), "is not served: send the request several times", _RESPONSES),
    # What the answer would have besides.
    NotServed("logprobs", (False, 0), _BY_CHATS, _RESPONSES),
    NotServed("top_logprobs", (0,), _BY_CHATS, (OpenAIRoute.TEXT, OpenAIRoute.RESPONSES)),
    NotServed("include", ([],), f"serves no {_LOGPROBS}: leave it out", _RESPONSES, _no_logprobs),
    NotServed("prompt_logprobs", _OFF, _LACKS),
    NotServed("logprob_token_ids", ([],), _LACKS),
    NotServed("enable_response_messages", _OFF, _LACKS),
    NotServed("return_token_ids", _OFF, _LACKS),
    NotServed("return_tokens_as_token_ids", _OFF, _LACKS),
    NotServed("return_token_offsets", _OFF, _LACKS),
    NotServed("return_prompt_text", _OFF, _LACKS),
    NotServed("return_prompt_token_ids", _OFF, _LACKS),
    NotServed("return_hidden_states", _OFF, _LACKS),
    NotServed("return_routed_experts", _OFF, _LACKS),
    NotServed("return_cached_tokens_details", _OFF, _LACKS),
    NotServed("return_spec_tokens_details", _OFF, _LACKS),
    NotServed("return_meta_info", _OFF, _LACKS),
    NotServed("return_input_ids_in_sglext", _OFF, _LACKS),
    NotServed("return_output_ids_in_sglext", _OFF, _LACKS),
    NotServed("return_sampling_mask", _OFF, _LACKS),
    NotServed("return_flat_raw_output_top_logprobs", _OFF, _LACKS),
    NotServed("sampling_logprobs_mode", (), _LACKS),
    # Whose cache is read.
    NotServed("cache_salt", (), "is derived by the server from your key: leave it out"),
    NotServed("extra_key", (), "is derived by the server from your key: leave it out"),
)  # fmt: skip

# Fields that may be ignored, and why.
_MEDIA = "about images, audio and video, which are refused where they stand"
_PLACE = "where an engine computes is decided here"
_LABEL = "a name for logs"
ADVICE: Mapping[str, str] = {
    "metadata": "responses keep it, and of others it is a name for logs",
    "custom_labels": _LABEL,
    "request_id": _LABEL,
    "rid": _LABEL,
    "user": _LABEL,
    "safety_identifier": _LABEL,
    "session_id": "responses name their session in `weftline`",
    "store": "responses are kept, and no other answers",
    "service_tier": "there is one tier; `priority` orders calls",
    "priority": "responses run at the usual priority",
    "access_programs": "there is none",
    "reasoning": "responses name the effort so, and chats as `reasoning_effort`",
    "reasoning_effort": "chats name the effort so, and responses in `reasoning`",
    "verbosity": "how long an answer is, is for models that were trained for it",
    "prediction": "a guess that saves time; drafts are made here",
    "prompt_cache_key": "caches are found by their content",
    "prompt_cache_options": "caches are found by their content",
    "prompt_cache_retention": "caches are found by their content",
    "truncation": "an input that is too long is a 400",
    "truncation_side": "counts only with truncate_prompt_tokens",
    "max_tool_calls": "bounds tools that OpenAI runs, and there are none",
    "parallel_tool_calls": "a text completion calls no tools",
    "stream_options": "responses always end with the usage",
    "stream_interval": "how many tokens an event has",
    "length_penalty": "counts only with use_beam_search",
    "spaces_between_special_tokens": "counts only without skip_special_tokens",
    "guided_decoding_backend": "which library holds an output to its form",
    "image": _MEDIA,
    "images_config": _MEDIA,
    "video_config": _MEDIA,
    "media_io_kwargs": _MEDIA,
    "mm_processor_kwargs": _MEDIA,
    "mm_payload": _MEDIA,
    "return_mm_kwargs": _MEDIA,
    "max_dynamic_patch": _MEDIA,
    "min_dynamic_patch": _MEDIA,
    "use_audio_in_video": _MEDIA,
    "kv_transfer_params": _PLACE,
    "ec_transfer_params": _PLACE,
    "bootstrap_host": _PLACE,
    "bootstrap_port": _PLACE,
    "bootstrap_room": _PLACE,
    "routed_dp_rank": _PLACE,
    "disagg_prefill_dp_rank": _PLACE,
    "data_parallel_rank": _PLACE,
    "routed_experts_prompt_start": "counts only with return_routed_experts",
    "routed_experts_start_len": "counts only with return_routed_experts",
    "return_flat_raw_top_logprobs_b64": "counts only with return_flat_raw_output_top_logprobs",
}


def served(endpoint: OpenAIRoute) -> frozenset[str]:
    return frozenset(one.name for one in fields(KINDS[endpoint]))


def treatment(endpoint: OpenAIRoute, name: str) -> Treatment | None:
    """What becomes of a field; None for one that no table knows."""
    if name in served(endpoint):
        return Treatment.SERVED
    if any(one.name == name and endpoint in one.of for one in REFUSED):
        return Treatment.REFUSED
    return Treatment.ADVICE if name in ADVICE else None


def rows() -> Iterator[tuple[str, Mapping[OpenAIRoute, Treatment | None], str]]:
    """The whole table, by name: what each route does with the field, and what is said of it."""
    names = {one.name: one.says for one in REFUSED} | dict(ADVICE)
    for name in sorted(names | dict.fromkeys(frozenset().union(*map(served, OpenAIRoute)), "")):
        yield name, {one: treatment(one, name) for one in OpenAIRoute}, names.get(name, "")


_REFUSED = {
    endpoint: {one.name: one for one in REFUSED if endpoint in one.of} for endpoint in OpenAIRoute
}


_MESSAGES = {
    OpenAIRoute.CHAT: ("messages",),
    OpenAIRoute.TEXT: (),
    OpenAIRoute.RESPONSES: ("input",),
}


def check(endpoint: OpenAIRoute, body: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for the first field that would change the answer and is not served, also
    of a message."""
    table = _REFUSED[endpoint]
    for name, value in body.items():
        found = table.get(name)
        if found is not None and not found.passes(value, body):
            raise InvalidRequest(f"{name} {found.says}", param=name)
    for name in _MESSAGES[endpoint]:
        check_messages(body.get(name), name)
