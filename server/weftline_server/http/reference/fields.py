"""What each field of a request means, with an example of its value.

A name is `Type.field`, or `field` where all types mean the same by it. A test holds that every
field of a request has an entry here, and that every entry is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Field(NamedTuple):
    """One sentence about a field, and a value that it may have."""

    says: str
    example: Any


_SOURCE = {"var": "question"}
_MESSAGE = {"role": "user", "content": "Name a river."}
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
_FUNCTION = {"name": "get_weather", "parameters": _SCHEMA}
_BODY = {"calls": [{"name": "short", "prompt": "Shorten {{input:item}}: {{output:line}}"}]}

_OF_ALL = {
    "after": Field("Steps that must have ended first, by the variables that they write.", ["kept"]),
    "cache_salt": Field("Refused. The server derives it from the key.", None),
    "constraint": Field("The form of the output: a JSON schema, a regex or a choice.",
                        {"choice": ["yes", "no"]}),
    "criteria": Field("What matters to who waits: latency, ttft, tpot or throughput.", "latency"),
    "effects": Field("What a second run would do: none, idempotent, or once for a step that must "
                     "not run twice.", "none"),
    "engine": Field("The embedder or reranker that runs it. None is the first one.", "minilm"),
    "filter": Field("Only items whose metadata has these values.", {"language": "en"}),
    "frequency_penalty": Field("Lowers a token's chance by how often the output has it.", 0.0),
    "from_var": Field("The variable that the text came from, so that the graph has an edge.",
                      "draft"),
    "ignore_eos": Field("Generate on after the model's end token.", False),
    "in": Field("What the step works on: a variable, or a value.", _SOURCE),
    "kind": Field("The kind of the step.", "embed"),
    "max_tokens": Field("The most tokens of the output.", 64),
    "min_p": Field("Leaves out tokens less likely than this share of the likeliest.", 0.05),
    "min_tokens": Field("The fewest tokens of the output.", 0),
    "model": Field("A model of GET /v1/models. Without it the server takes the first one.",
                   "default"),
    "out": Field("The variable that the step writes.", "vectors"),
    "presence_penalty": Field("Lowers the chance of every token that the output has already.", 0.0),
    "priority": Field("-100 to 100. A lower one goes first. One step equals ten seconds of "
                      "waiting.", 0),
    "repetition_penalty": Field("Divides the chance of tokens that prompt or output have. 1 is "
                                "off.", 1.0),
    "seed": Field("Makes sampling repeatable on the same engine.", 7),
    "semantic_var_id": Field("A variable of the session. Clients may choose the ids of outputs.",
                             "draft"),
    "session_id": Field("The session, as POST /v1/session returned it.",
                        "s_4f1c2a9e_00000000000000000000000000000001"),
    "stop": Field("Texts that end the output. They are not part of it.", ["\n"]),
    "store": Field("The name of a store of this server.", "notes"),
    "temperature": Field("0 takes the likeliest token each time. A higher one varies more.", 0.7),
    "tool_call_id": Field("The tool call that this message answers.", "call_1"),
    "tool_choice": Field("auto, none, required, or one function by name.", "auto"),
    "top_k": Field("Samples among this many of the likeliest tokens.", 40),
    "top_p": Field("Samples among the likeliest tokens that have this share together.", 0.95),
    "transforms": Field("Operations on the text, in order. docs/transforms.md lists them.",
                        [{"op": "strip"}]),
    "user": Field("Taken and not used.", "ada"),
    "when": Field("A condition on the value; docs/steps.md lists them.",
                  {"op": "contains", "value": "yes"}),
}  # fmt: skip

_STEPS = {
    "Body.calls": Field("Calls of the body, as in a submit.", _BODY["calls"]),
    "Body.steps": Field("Steps of the body, as in a submit.", []),
    "Branch.cases": Field("The sides, of which the first whose condition holds is taken.",
                          [{"when": {"op": "contains", "value": "yes"}, "take": "long"}]),
    "Branch.default": Field("The side that is taken if no condition holds.", "short"),
    "Branch.on": Field("The value that the conditions look at.", _SOURCE),
    "Case.take": Field("The variable whose side is taken.", "long"),
    "ClientStep.lease_s": Field("Seconds that the client may take before the step fails.", 60.0),
    "ClientStep.reads": Field("Variables that the client needs.", ["draft"]),
    "Each.body": Field("What is done with each item.", _BODY),
    "Each.collect": Field("Variables of the body, and the lists that collect them.",
                          {"line": "lines"}),
    "Each.item": Field("The name by which the body reads the item.", "item"),
    "Each.max_items": Field("The most items; a longer list fails.", 32),
    "Each.on_error": Field("What an item that fails does: fail, skip, or value.", "fail"),
    "Each.otherwise": Field("The value of an item that fails, with on_error value.", ""),
    "Each.over": Field("The list.", _SOURCE),
    "FunctionStep.args": Field("The arguments by name.", {"text": _SOURCE}),
    "FunctionStep.function": Field("The name of a function of this server.", "clean"),
    "Loop.body": Field("What a turn does.", _BODY),
    "Loop.carry": Field("The values of the first turn, by name.", {"draft": _SOURCE}),
    "Loop.most": Field("The most turns.", 3),
    "Loop.next": Field("The values of the next turn: names of carry, and variables of the body.",
                       {"draft": "better"}),
    "Loop.result": Field("The variable of the last turn that becomes the loop's value.", "better"),
    "Loop.until": Field("The condition that ends the loop.",
                        {"on": "verdict", "when": {"op": "contains", "value": "good"}}),
    "Merge.by": Field("What makes two items the same: id or text.", "id"),
    "Merge.limit": Field("The most items that are kept.", 8),
    "Rerank.k": Field("The most items that are kept.", 4),
    "Rerank.query": Field("What the items are compared with.", _SOURCE),
    "Search.k": Field("The most items that are found.", 4),
    "Source.value": Field("A value of the client.", "Where does the Rhine rise?"),
    "Source.var": Field("A variable of the session.", "question"),
    "Until.on": Field("The variable of the body that the condition looks at.", "verdict"),
    "name": Field("A name for people. The graph and the log show it.", "draft"),
}  # fmt: skip

_CALLS = {
    "Call.parallel_tool_calls": Field("Whether an output may call several tools.", True),
    "Call.placeholders": Field("Binds each name of the prompt to a variable or a value.",
                               [{"name": "line", "in_out": "out", "semantic_var_id": "draft"}]),
    "Call.prompt": Field("Template text, segments, or messages of segments.",
                         "Write a headline about rivers: {{output:line}}"),
    "Call.tools": Field("Functions that the model may call.", [{"function": _FUNCTION}]),
    "CalledFunction.arguments": Field("The arguments as JSON text.", '{"city": "Rome"}'),
    "CalledFunction.name": Field("The function that was called.", "get_weather"),
    "Function.description": Field("What it does, for the model.", "The weather of a city"),
    "Function.name": Field("The name by which the model calls it.", "get_weather"),
    "Function.parameters": Field("A JSON schema of the arguments.", _SCHEMA),
    "Function.strict": Field("Hold the arguments to the schema.", True),
    "Get.stream": Field("Answer with server-sent events.", False),
    "Get.timeout_s": Field("Seconds after which the answer is a 408. The work goes on.", 30.0),
    "Get.wait": Field("Wait also for a variable that no call produces yet.", False),
    "Message.content": Field("Segments of text, inputs and outputs.", [{"text": "Hello"}]),
    "Message.role": Field("system, developer, user, assistant or tool.", "user"),
    "Message.tool_calls": Field("The calls that the assistant made.", []),
    "NamedFunction.name": Field("The function that must be called.", "get_weather"),
    "NamedTool.function": Field("The function that must be called.", {"name": "get_weather"}),
    "NamedTool.type": Field("function, the only type.", "function"),
    "Placeholder.in_out": Field("in for what the prompt reads, out for what it generates.", "out"),
    "Placeholder.sampling": Field("How an output is generated.", {"max_tokens": 64}),
    "Placeholder.value": Field("The value of an input, where no variable has it.", "rivers"),
    "Sampling.logprobs": Field("Log probabilities of each token, and of so many alternatives.", 0),
    "Segment.input": Field("The placeholder whose value stands here.", "topic"),
    "Segment.output": Field("The placeholder that is generated here.", "line"),
    "Segment.text": Field("Constant text.", "Write a headline about "),
    "SetVariable.error": Field("Why the client cannot give a value.",
                               {"code": "no_answer", "message": "nobody answered"}),
    "SetVariable.value": Field("Text, or any JSON value but null.", "rivers"),
    "StepError.code": Field("A code for programs.", "no_answer"),
    "StepError.message": Field("A sentence for people.", "nobody answered"),
    "Submit.calls": Field("The calls to add.",
                          [{"name": "draft", "prompt": "Write about rivers: {{output:line}}",
                            "placeholders": [{"name": "line", "in_out": "out",
                                              "semantic_var_id": "draft"}]}]),
    "Submit.close": Field("Close the session after the answer.", True),
    "Submit.detach": Field("Keep the calls running although nobody waits for them.", False),
    "Submit.get": Field("Variables whose values the answer waits for and holds.", ["draft"]),
    "Submit.graph": Field("Answer with the session's graph too.", False),
    "Submit.open": Field("The client chose the session's id; its first request opens the session.",
                         False),
    "Submit.parts": Field("With watch: also the texts while they are generated.", False),
    "Submit.steps": Field("Steps that are no calls. docs/steps.md and docs/rag.md describe them.",
                          []),
    "Submit.stream": Field("Answer with the text of this variable as server-sent events.", None),
    "Submit.wait": Field("A watched variable may have no producer yet.", False),
    "Submit.watch": Field("Answer with an event for each of these variables.", []),
    "Tool.function": Field("The function that is offered.", _FUNCTION),
    "Tool.type": Field("function, the only type.", "function"),
    "ToolCall.function": Field("The function and its arguments.",
                               {"name": "get_weather", "arguments": '{"city": "Rome"}'}),
    "ToolCall.id": Field("The id that the tool's result names.", "call_1"),
    "ToolCall.type": Field("function, the only type.", "function"),
}  # fmt: skip

_OPENAI = {
    "best_of": Field("Only the value of n is taken.", 1),
    "echo": Field("Only false is taken.", False),
    "functions": Field("Refused. Use tools.", None),
    "logit_bias": Field("Only an empty object is taken.", {}),
    "max_completion_tokens": Field("The most tokens of the output; goes before max_tokens.", 64),
    "n": Field("The number of choices. They share the prompt's KV cache.", 1),
    "parallel_tool_calls": Field("Whether the answer may call several tools.", True),
    "response_format": Field("text, json_object, or json_schema with a schema.",
                             {"type": "json_object"}),
    "stream": Field("Answer with server-sent events.", False),
    "stream_options": Field("include_usage adds a last chunk with the usage.",
                            {"include_usage": True}),
    "suffix": Field("Only an empty text is taken.", ""),
    "ChatMessage.content": Field("A text, or parts of type text.", "Name a river."),
    "ChatMessage.role": Field("system, developer, user, assistant or tool.", "user"),
    "ChatMessage.tool_calls": Field("The calls that the assistant made.", None),
    "ChatRequest.logprobs": Field("Answer with the log probability of each token.", False),
    "ChatRequest.messages": Field("The chat so far.", [_MESSAGE]),
    "ChatRequest.tools": Field("Functions that the model may call.", [{"function": _FUNCTION}]),
    "ChatRequest.top_logprobs": Field("So many alternatives for each token, with logprobs.", None),
    "ChatRequest.weftline": Field("The request's session, and where its texts come from.",
                                  {"name": "draft"}),
    "CompletionRequest.logprobs": Field("Log probabilities, with so many alternatives.", None),
    "CompletionRequest.prompt": Field("A text, or several.", "The longest river of Europe is"),
    "EmbeddingsRequest.dimensions": Field("Keep so many leading numbers of each vector.", None),
    "EmbeddingsRequest.encoding_format": Field("float, or base64 of 32-bit floats.", "float"),
    "EmbeddingsRequest.input": Field("A text, or several.", "Where does the Rhine rise?"),
    "EmbeddingsRequest.model": Field("An embedder of this server. None is the first.", None),
    "JsonSchema.schema": Field("The schema.", _SCHEMA),
    "Piece.name": Field("The input of a template that the text is.", "topic"),
    "Piece.text": Field("The text.", "rivers"),
    "Provenance.close": Field("Sessions that the client has finished.", []),
    "Provenance.messages": Field("For each message null, or its pieces.", []),
    "Provenance.open": Field("The client chose the id. Its first request opens it.", False),
    "Provenance.run_tools": Field("The server runs its own tools when they are called.", False),
    "RerankRequest.documents": Field("Texts, or objects with a text.",
                                     ["The Rhine rises in the Alps.", "Bread needs flour."]),
    "RerankRequest.model": Field("A reranker or embedder of this server. None is the first.", None),
    "RerankRequest.query": Field("What the documents are compared with.",
                                 "Where does the Rhine rise?"),
    "RerankRequest.return_documents": Field("Answer with the documents too.", False),
    "RerankRequest.top_n": Field("Keep so many of the best.", 1),
    "ResponseFormat.json_schema": Field("The schema, for type json_schema.", {"schema": _SCHEMA}),
    "ResponseFormat.type": Field("text, json_object or json_schema.", "json_object"),
    "StreamOptions.include_usage": Field("Add a last chunk with the usage.", True),
    "TextPart.text": Field("The text.", "Name a river."),
    "TextPart.type": Field("text, the only type.", "text"),
}  # fmt: skip

FIELDS: Mapping[str, Field] = MappingProxyType({**_OF_ALL, **_STEPS, **_CALLS, **_OPENAI})


def field_of(kind: str, name: str) -> Field:
    """What the field `name` of a `kind` means. Raises KeyError for one that is not described."""
    return FIELDS.get(f"{kind}.{name}") or FIELDS[name]
