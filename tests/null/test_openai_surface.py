"""One table says of every field of OpenAI's, vLLM's and SGLang's requests what becomes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.null.asgi import Serve
from weftline_engine.pretend.null import NullConfig, NullMode
from weftline_server.http.openai.requests import ChatRequest
from weftline_server.http.openai.surface import (
    ADVICE,
    REFUSED,
    NotServed,
    OpenAIRoute,
    Treatment,
    rows,
    served,
    treatment,
)

# The fields of the requests of openai 3.52, vLLM 0.32 and SGLang 0.5.23, without private ones.
OPENAI = {
    OpenAIRoute.CHAT: """audio frequency_penalty function_call functions logit_bias logprobs
        max_completion_tokens max_tokens messages metadata modalities model moderation n
        parallel_tool_calls prediction presence_penalty prompt_cache_key prompt_cache_options
        prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier
        stop store stream stream_options temperature tool_choice tools top_logprobs top_p user
        verbosity web_search_options""",
    OpenAIRoute.TEXT: """best_of echo frequency_penalty logit_bias logprobs max_tokens model n
        presence_penalty prompt seed stop stream stream_options suffix temperature top_p user""",
    OpenAIRoute.RESPONSES: """access_programs background context_management conversation image
        include input instructions max_output_tokens max_tool_calls metadata model moderation
        parallel_tool_calls previous_response_id prompt prompt_cache_key prompt_cache_options
        prompt_cache_retention reasoning safety_identifier service_tier store stream stream_options
        temperature text tool_choice tools top_logprobs top_p truncation user""",
}
_VLLM_BOTH = """top_k min_p repetition_penalty use_beam_search watermarking length_penalty
    stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens
    spaces_between_special_tokens truncate_prompt_tokens truncation_side prompt_logprobs
    logprob_token_ids allowed_token_ids bad_words add_special_tokens response_format
    structured_outputs priority request_id session_id return_tokens_as_token_ids return_token_ids
    routed_experts_prompt_start return_token_offsets mm_payload return_mm_kwargs cache_salt
    kv_transfer_params ec_transfer_params vllm_xargs repetition_detection thinking_token_budget
    stream_interval guided_json guided_regex guided_choice guided_grammar guided_decoding_backend
    guided_whitespace_pattern logits_processors"""
VLLM = {
    OpenAIRoute.CHAT: f"""{_VLLM_BOTH} reasoning_effort include_reasoning echo add_generation_prompt
        continue_final_message documents chat_template chat_template_kwargs media_io_kwargs
        mm_processor_kwargs return_prompt_text""",
    OpenAIRoute.TEXT: f"{_VLLM_BOTH} prompt_embeds",
    OpenAIRoute.RESPONSES: """logit_bias include_reasoning top_k min_p skip_special_tokens
        include_stop_str_in_output presence_penalty frequency_penalty watermarking request_id
        session_id media_io_kwargs mm_processor_kwargs priority mm_payload return_mm_kwargs
        cache_salt enable_response_messages previous_input_messages structured_outputs
        repetition_penalty seed stop stop_token_ids ignore_eos vllm_xargs kv_transfer_params
        ec_transfer_params chat_template_kwargs""",
}
_SGLANG_BOTH = """bootstrap_host bootstrap_port bootstrap_room routed_dp_rank disagg_prefill_dp_rank
    return_hidden_states return_routed_experts routed_experts_start_len
    return_cached_tokens_details return_spec_tokens_details return_token_ids top_k min_p min_tokens
    regex ebnf repetition_penalty stop_token_ids stop_regex no_stop_trim ignore_eos
    skip_special_tokens lora_path session_id session_params custom_params custom_logit_processor
    watermark images_config mm_processor_kwargs data_parallel_rank rid extra_key cache_salt
    priority"""
SGLANG = {
    OpenAIRoute.CHAT: f"""{_SGLANG_BOTH} return_prompt_token_ids return_meta_info
        return_input_ids_in_sglext return_output_ids_in_sglext return_sampling_mask
        sampling_logprobs_mode return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64
        thinking task continue_final_message separate_reasoning stream_reasoning
        chat_template_kwargs max_dynamic_patch min_dynamic_patch use_audio_in_video video_config
        input_ids""",
    OpenAIRoute.TEXT: f"""{_SGLANG_BOTH} json_schema response_format custom_labels best_of echo
        suffix""",
    OpenAIRoute.RESPONSES: """bootstrap_host bootstrap_port bootstrap_room routed_dp_rank
        disagg_prefill_dp_rank chat_template_kwargs request_id session_id priority extra_key
        cache_salt data_parallel_rank frequency_penalty presence_penalty stop top_k min_p
        repetition_penalty""",
}
# A value that would change the answer, where the text "x" would not do as one.
CHANGED: dict[str, Any] = {
    "best_of": 3, "include": ["message.output_text.logprobs"], "logprobs": True, "n": 2,
    "top_logprobs": 2, "echo": True,
}  # fmt: skip
LEAST: dict[OpenAIRoute, dict[str, Any]] = {
    OpenAIRoute.CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    OpenAIRoute.TEXT: {"prompt": "hi"},
    OpenAIRoute.RESPONSES: {"input": "hi"},
}
REFUSALS = [(endpoint, one) for one in REFUSED for endpoint in one.of]


def test_no_field_of_the_three_interfaces_is_unknown() -> None:
    """Each is served, refused or advice, on every route that has it in one of the interfaces."""
    for table in (OPENAI, VLLM, SGLANG):
        for endpoint, names in table.items():
            unknown = {name for name in names.split() if treatment(endpoint, name) is None}
            assert not unknown, (endpoint, unknown)


def test_no_field_stands_twice_in_the_table() -> None:
    """A field is served, refused or advice on a route, and nothing besides."""
    for endpoint in OpenAIRoute:
        refused = [one.name for one in REFUSED if endpoint in one.of]
        assert len(refused) == len(set(refused))
        assert not set(refused) & served(endpoint)
        assert not set(refused) & set(ADVICE)


def test_every_row_says_something_of_a_route() -> None:
    """The documentation shows these rows. Of what is not served on some route it says why."""
    for name, found, says in rows():
        assert set(found.values()) - {None}, name
        if {Treatment.REFUSED, Treatment.ADVICE} & set(found.values()):
            assert says, name


@pytest.mark.parametrize(
    ("endpoint", "field"), REFUSALS, ids=[f"{e.name}-{one.name}" for e, one in REFUSALS]
)
async def test_a_field_that_would_change_the_answer_is_named(
    endpoint: OpenAIRoute, field: NotServed, serve: Serve
) -> None:
    """A value that asks for something is a 400 with the field's name. null, and each neutral value,
    is answered.
    """
    server = await serve()
    path, least = f"/v1/{endpoint}", LEAST[endpoint]
    body = {**least, field.name: CHANGED.get(field.name, "x")}
    answer = await server.http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field.name)
    assert field.name in answer.json()["error"]["message"]
    for value in (None, *field.neutral):
        answer = await server.http.post(path, json={**least, field.name: value})
        assert answer.status_code == 200, (value, answer.text)


async def test_advice_is_ignored(serve: Serve) -> None:
    """All of it at once, with values of whatever type: the answer is the one without it."""
    server = await serve()
    for endpoint, least in LEAST.items():
        advice = {name: {"a": [1]} for name in ADVICE if name not in served(endpoint)}
        answer = await server.http.post(f"/v1/{endpoint}", json={**least, **advice})
        assert answer.status_code == 200, answer.text


# How each client asks for one of two words, and the constraint that it becomes.
EBNF = 'root ::= "yes" | "no"'
OLD_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}],
    "triggers": ["<f"],
}
FORMAT = {"type": "const_string", "value": "yes"}
OBJECT, NUMBER = {"type": "object"}, {"type": "integer"}
WISHES: list[tuple[str, Any, dict[str, Any]]] = [
    ("response_format", {"type": "json_object"}, {"json_schema": OBJECT}),
    ("response_format", {"type": "json_object", "schema": NUMBER}, {"json_schema": NUMBER}),
    (
        "response_format",
        {"type": "json_object", "json_schema": {"schema": NUMBER}},
        {"json_schema": NUMBER},
    ),
    (
        "response_format",
        {"type": "json_schema", "json_schema": {"name": "x", "schema": NUMBER}},
        {"json_schema": NUMBER},
    ),
    ("response_format", {"type": "regex", "pattern": "yes|no"}, {"regex": "yes|no"}),
    ("response_format", {"type": "regex", "regex": "yes|no"}, {"regex": "yes|no"}),
    ("response_format", {"type": "regex", "value": "yes|no"}, {"regex": "yes|no"}),
    ("response_format", {"type": "grammar", "grammar": EBNF}, {"grammar": EBNF}),
    (
        "response_format",
        OLD_TAG,
        {
            "structural_tag": {
                "structures": OLD_TAG["structures"],
                "triggers": ["<f"],
                "at_least_one": False,
            }
        },
    ),
    (
        "response_format",
        {"type": "structural_tag", "format": FORMAT},
        {"structural_tag": {"format": FORMAT}},
    ),
    ("structured_outputs", {"choice": ["yes", "no"]}, {"choice": ["yes", "no"]}),
    ("structured_outputs", {"json": '{"type": "integer"}'}, {"json_schema": NUMBER}),
    ("structured_outputs", {"json": NUMBER}, {"json_schema": NUMBER}),
    ("structured_outputs", {"json_object": True}, {"json_schema": OBJECT}),
    (
        "structured_outputs",
        {"json": NUMBER, "disable_any_whitespace": True},
        {"json_schema": {"x-guidance": {"whitespace_flexible": False}, **NUMBER}},
    ),
    ("structured_outputs", {"regex": "yes|no"}, {"regex": "yes|no"}),
    ("structured_outputs", {"grammar": EBNF}, {"grammar": EBNF}),
    ("structured_outputs", {"structural_tag": json.dumps(OLD_TAG)}, {"structural_tag": OLD_TAG}),
    ("guided_json", NUMBER, {"json_schema": NUMBER}),
    ("guided_json", '{"type": "integer"}', {"json_schema": NUMBER}),
    ("guided_regex", "yes|no", {"regex": "yes|no"}),
    ("guided_choice", ["yes", "no"], {"choice": ["yes", "no"]}),
    ("guided_grammar", EBNF, {"grammar": EBNF}),
    ("json_schema", '{"type": "integer"}', {"json_schema": NUMBER}),
    ("regex", "yes|no", {"regex": "yes|no"}),
    ("ebnf", EBNF, {"grammar": EBNF}),
    ("grammar", EBNF, {"grammar": EBNF}),
    ("constraint", {"choice": ["yes", "no"]}, {"choice": ["yes", "no"]}),
]
IDS = [f"{name}-{at}" for at, (name, _, _) in enumerate(WISHES)]


@pytest.mark.parametrize(("name", "value", "constraint"), WISHES, ids=IDS)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_cannot_follow_a_constraint_says_so(
    name: str, value: Any, constraint: dict[str, Any], stream: bool, serve: Serve
) -> None:
    """An engine that echoes its prompt can hold no answer to a form. The error names the field in
    which the client gave the constraint, and none of these fields is ignored."""
    server = await serve()
    for endpoint, least in LEAST.items():
        body = {**least, name: value, "stream": stream}
        answer = await server.http.post(f"/v1/{endpoint}", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
        [kind] = constraint
        assert f"cannot hold an output to a {kind}" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("name", "value", "constraint"), WISHES, ids=IDS)
async def test_an_engine_that_can_gets_the_constraint(
    name: str, value: Any, constraint: dict[str, Any], serve: Serve
) -> None:
    """A scripted engine stands for one that follows every constraint. Each client's words become
    the constraint that an engine knows."""
    made = TypeAdapter(ChatRequest).validate_python({**LEAST[OpenAIRoute.CHAT], name: value})
    assert made.sampling().constraint == constraint
    config = NullConfig(mode=NullMode.SCRIPT, script=(("", "yes"),))
    server = await serve(config)
    for endpoint, least in LEAST.items():
        answer = await server.http.post(f"/v1/{endpoint}", json={**least, name: value})
        assert answer.status_code == 200, answer.text


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": ["a", ""]}, "guided_choice"),
    ({"guided_choice": "a"}, "guided_choice"),
    ({"guided_regex": ""}, "guided_regex"),
    ({"guided_json": "{"}, "guided_json"),
    ({"json_schema": "[]"}, "json_schema"),
    ({"regex": "a", "ebnf": EBNF}, "ebnf"),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
    ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex"),
    ({"structured_outputs": {"regex": "a"}, "constraint": {"regex": "a"}}, "constraint"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
    ({"structured_outputs": {"json": "nonsense"}}, "structured_outputs.json"),
    (
        {"structured_outputs": {"regex": "a", "disable_additional_properties": True}},
        "structured_outputs.disable_additional_properties",
    ),
    ({"structured_outputs": {"regex": "a", "unknown": 1}}, "structured_outputs.unknown"),
    ({"structured_outputs": {"structural_tag": {"tags": []}}}, "structured_outputs"),
    ({"response_format": {"type": "regex"}}, "response_format"),
    ({"response_format": {"type": "regex", "regex": "a", "pattern": "b"}}, "response_format"),
    ({"response_format": {"type": "grammar"}}, "response_format"),
    ({"response_format": {"type": "structural_tag"}}, "response_format"),
    (
        {"response_format": {"type": "structural_tag", "structures": [{}], "triggers": ["<"]}},
        "response_format",
    ),
    ({"response_format": {"type": "grammar", "grammar": "a" * 70_000}}, "response_format"),
]


@pytest.mark.parametrize(
    ("more", "param"), WRONG, ids=[f"{p}-{i}" for i, (_, p) in enumerate(WRONG)]
)
async def test_a_wrong_constraint_is_named(more: dict[str, Any], param: str, serve: Serve) -> None:
    """Two constraints, an empty one, one that is not JSON: also on an engine that takes all."""
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=(("", "yes"),)))
    for endpoint in (OpenAIRoute.CHAT, OpenAIRoute.RESPONSES):
        answer = await server.http.post(f"/v1/{endpoint}", json={**LEAST[endpoint], **more})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


async def test_a_response_has_one_form(serve: Serve) -> None:
    """The form of a response's text stands in text.format, and not in another field besides."""
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=(("", "{}"),)))
    text = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}
    body: dict[str, Any] = {"input": "hi", "text": text}
    assert (await server.http.post("/v1/responses", json=body)).status_code == 200
    for more, param in (
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"regex": "a"}, "regex"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
    ):
        answer = await server.http.post("/v1/responses", json={**body, **more})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


BIASES: list[tuple[Any, str]] = [
    ({"a": 1}, "'a' in logit_bias is not the id of a token"),
    ({"-1": 1}, "'-1' in logit_bias is not the id of a token"),
    ({"007": 1}, "'007' in logit_bias is not the id of a token"),
    ({"7": 100.5}, "logit_bias of token 7 must be in -100 to 100, got 100.5"),
    ({"7": -101}, "logit_bias of token 7 must be in -100 to 100, got -101.0"),
    ({str(at): 1 for at in range(1025)}, "logit_bias has at most 1,024 entries, got 1,025"),
    ({"7": 1}, "the engine of model 'null' takes no logit_bias: leave it out"),
]


@pytest.mark.parametrize(("biases", "says"), BIASES, ids=[says[:30] for _, says in BIASES])
async def test_a_wrong_logit_bias_is_named(biases: Any, says: str, serve: Serve) -> None:
    """An id, a value, too many entries, and an engine whose tokens are words."""
    server = await serve()
    for endpoint, least in LEAST.items():
        answer = await server.http.post(f"/v1/{endpoint}", json={**least, "logit_bias": biases})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["message"]) == (400, "logit_bias", says)
        answer = await server.http.post(f"/v1/{endpoint}", json={**least, "logit_bias": {}})
        assert answer.status_code == 200


@pytest.mark.parametrize("top_k", [-1, 0, None])
async def test_no_top_k(top_k: int | None, serve: Serve) -> None:
    """vLLM's and SGLang's clients send -1, which is off."""
    server = await serve()
    for endpoint, least in LEAST.items():
        answer = await server.http.post(f"/v1/{endpoint}", json={**least, "top_k": top_k})
        assert answer.status_code == 200
