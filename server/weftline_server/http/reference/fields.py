"""What each field of a request means, with an example of its value.

A name is `Type.field`, or `field` where all types mean the same by it. A test holds that every
field of a request has an entry here, and that every entry is used. Those of sampling parameters
come from their table, and those of a kind of steps from the kind's own file.

The sentences stand here by hand and not at the 298 fields. The client's types cannot use pydantic,
and one sentence serves several types: with each at its fields the tree was 160 lines longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from weftline.contract.sampling import PARAMETERS
from weftline.contract.steps import STEPS
from weftline_server.http.reference.anthropic_fields import ANTHROPIC
from weftline_server.lowering.kinds import KINDS
from weftline_server.lowering.step import Field

_SOURCE = {"var": "question"}
_MESSAGE = {"role": "user", "content": "Name a river."}
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
_FUNCTION = {"name": "get_weather", "parameters": _SCHEMA}
_STRUCTURE = {"begin": "<f=x>", "schema": _SCHEMA, "end": "</f>"}
_NAMED = {"type": "function", "function": {"name": "get_weather"}}
_BODY = {"calls": [{"name": "short", "prompt": "Shorten {{input:item}}: {{output:line}}"}]}

_TRUNCATE = Field("NONE, or END: a text is cut to what the model takes.", None)

_OF_ALL = {
    "truncate_prompt_tokens": Field("To how many tokens a longer text is cut; -1 is what the model "
                                    "takes. Without it a longer text is refused.", None),
    "after": Field("Steps that must have ended first, by the variables that they write.", ["kept"]),
    "agent_hints": Field("The hints of NVIDIA Dynamo that count here.", {"priority": 5}),
    "AgentHints.priority": Field("A higher one goes first, as in Dynamo. `priority` goes before "
                                 "it.", 5),
    "arguments": Field("The arguments as JSON text.", '{"city": "Rome"}'),
    "criteria": Field("What matters to the reader: latency, ttft, tpot or throughput.", "latency"),
    "description": Field("What it does, for the model.", "The weather of a city"),
    "effects": Field("What a second run would do: none, idempotent, or once for a step that must "
                     "not run twice.", "none"),
    "engine": Field("The embedder or reranker that runs it. None is the first one.", "minilm"),
    "filter": Field("Only items whose metadata has these values.", {"language": "en"}),
    "from_var": Field("The variable that the text came from, so that the graph has an edge.",
                      "draft"),
    "in": Field("What the step works on: a variable, or a value.", _SOURCE),
    "kind": Field("The kind of the step.", "embed"),
    "model": Field("A model of GET /v1/models. Without it the server takes the first one.",
                   "default"),
    "nvext": Field("Fields of NVIDIA Dynamo.", {"agent_hints": {"priority": 5}}),
    "out": Field("The variable that the step writes.", "vectors"),
    "parameters": Field("A JSON schema of the arguments.", _SCHEMA),
    "reasoning_content": Field("The assistant's thoughts before its answer.", None),
    "priority": Field("-100 to 100. A lower one goes first. One step equals ten seconds of "
                      "waiting.", 0),
    "prompt_cache_key": Field("Requests of one key are searched for the conversation that they "
                              "continue.", "notes-of-ada"),
    "semantic_var_id": Field("A variable of the session. Clients may choose the ids of outputs.",
                             "draft"),
    "session_id": Field("The session, as POST /v1/session returned it.",
                        "s_4f1c2a9e_00000000000000000000000000000001"),
    "store": Field("The name of a store of this server.", "notes"),
    "strict": Field("Hold the arguments to the schema.", True),
    "tool_call_id": Field("The tool call that this message answers.", "call_1"),
    "tool_choice": Field("auto, none, required, one function by name, or allowed_tools.", "auto"),
    "transforms": Field("Operations on the text, in order. docs/transforms.md lists them.",
                        [{"op": "strip"}]),
    "type": Field("function, the only type.", "function"),
    "user": Field("Requests of one user are searched for the conversation that they continue.",
                  "ada"),
    "when": Field("A condition on the value; docs/steps.md lists them.",
                  {"op": "contains", "value": "yes"}),
}  # fmt: skip

_STEPS = {
    "Body.calls": Field("Calls of the body, as in a submit.", _BODY["calls"]),
    "Body.steps": Field("Steps of the body, as in a submit.", []),
    "Case.take": Field("The variable whose side is taken.", "long"),
    "Source.value": Field("A value of the client.", "Where does the Rhine rise?"),
    "Source.var": Field("A variable of the session.", "question"),
    "Until.on": Field("The variable of the body that the condition looks at.", "verdict"),
    "name": Field("A name for people. The graph and the log show it.", "draft"),
}  # fmt: skip

_CALLS = {
    "Call.chat_template_kwargs": Field("Further variables of the model's chat template.",
                                       {"enable_thinking": False}),
    "compacts_to": Field("The messages that replace the conversation which this call summarises.",
                         [{"role": "user", "content": [{"input": "answer"}]}]),
    "Call.parallel_tool_calls": Field("Whether an output may call several tools.", True),
    "Call.placeholders": Field("Binds each name of the prompt to a variable or a value.",
                               [{"name": "line", "in_out": "out", "semantic_var_id": "draft"}]),
    "Call.prompt": Field("Template text, segments, or messages of segments.",
                         "Write a headline about rivers: {{output:line}}"),
    "Call.separate_reasoning": Field("Leave the thoughts out of the text and the value.", True),
    "Call.tools": Field("Functions that the model may call.", [{"function": _FUNCTION}]),
    "CalledFunction.name": Field("The function that was called.", "get_weather"),
    "Function.grammar": Field("The Lark grammar of the text that is the only argument.", None),
    "Function.name": Field("The name by which the model calls it.", "get_weather"),
    "GetBody.stream": Field("Answer with server-sent events.", False),
    "GetBody.timeout_s": Field("Seconds after which the answer is a 408. The work goes on.", 30.0),
    "GetBody.wait": Field("Wait also for a variable that no call produces yet.", False),
    "Message.content": Field("Segments of text, inputs and outputs.", [{"text": "Hello"}]),
    "Message.role": Field("system, developer, user, assistant or tool.", "user"),
    "Message.tool_calls": Field("The calls that the assistant made.", []),
    "NamedFunction.name": Field("The function that must be called.", "get_weather"),
    "NamedTool.function": Field("The function that must be called.", {"name": "get_weather"}),
    "Placeholder.in_out": Field("in for what the prompt reads, out for what it generates.", "out"),
    "Placeholder.sampling": Field("How an output is generated.", {"max_tokens": 64}),
    "Placeholder.value": Field("The value of an input, where no variable has it.", "rivers"),
    "Segment.input": Field("The placeholder whose value stands here.", "topic"),
    "Segment.output": Field("The placeholder that is generated here.", "line"),
    "Segment.text": Field("Constant text.", "Write a headline about "),
    "Segment.tokens": Field("The ids of the text, which is then the whole prompt.", [19556, 28]),
    "SetVariable.error": Field("Why the client cannot give a value.",
                               {"code": "no_answer", "message": "nobody answered"}),
    "SetVariable.value": Field("Text, or any JSON value but null.", "rivers"),
    "StepError.code": Field("A code for programs.", "no_answer"),
    "StepError.message": Field("A sentence for people.", "nobody answered"),
    "SubmitBody.calls": Field("The calls to add.",
                          [{"name": "draft", "prompt": "Write about rivers: {{output:line}}",
                            "placeholders": [{"name": "line", "in_out": "out",
                                              "semantic_var_id": "draft"}]}]),
    "SubmitBody.close": Field("Close the session after the answer.", True),
    "run_name": Field("What the application calls this run; the list of sessions shows it.",
                      "nightly report"),
    "SubmitBody.detach": Field("Keep the calls running although no request waits for them.", False),
    "SubmitBody.get": Field("Variables whose values the answer waits for and holds.", ["draft"]),
    "SubmitBody.graph": Field("Answer with the session's graph too.", False),
    "OpenSession.beats": Field("The client promises heartbeats of the session.", True),
    "SubmitBody.beats": Field("With open, the client promises heartbeats.", False),
    "SubmitBody.open": Field("The client chose the session's id; its first request opens the "
                             "session.", False),
    "SubmitBody.parts": Field("With watch: also the texts while they are generated.", False),
    "SubmitBody.steps": Field("Steps that are no calls. docs/steps.md and docs/rag.md describe "
                              "them.", []),
    "SubmitBody.stream": Field("Answer with the text of this variable as server-sent events.",
                               None),
    "SubmitBody.wait": Field("A watched variable may have no producer yet.", False),
    "SubmitBody.watch": Field("Answer with an event for each of these variables.", []),
    "Tool.function": Field("The function that is offered.", _FUNCTION),
    "ToolCall.function": Field("The function and its arguments.",
                               {"name": "get_weather", "arguments": '{"city": "Rome"}'}),
    "ToolCall.id": Field("The id that the tool's result names.", "call_1"),
}  # fmt: skip

_OPENAI = {
    "continue_final_message": Field("Continue the last message, which is the assistant's.", True),
    "reasoning_effort": Field("How much the model thinks. The chat template gets it under this "
                              "name, and none as enable_thinking=false, too. An endpoint that has "
                              "its own template gets this field.", "low"),
    "chat_template_kwargs": Field("Further variables of the model's chat template.",
                                  {"enable_thinking": False}),
    "max_completion_tokens": Field("The most tokens of the output; goes before max_tokens.", 64),
    "n": Field("The number of choices. They share the prompt's KV cache.", 1),
    "parallel_tool_calls": Field("Whether the answer may call several tools.", True),
    "response_format": Field("The form of the answer. At most one field may constrain it.",
                             {"type": "json_object"}),
    "ebnf": Field("SGLang's grammar of the answer.", 'root ::= "yes" | "no"'),
    "grammar": Field("llama.cpp's grammar of the answer.", 'root ::= "yes" | "no"'),
    "guided_choice": Field("vLLM's earlier name: the answer is one of these.", ["yes", "no"]),
    "guided_grammar": Field("vLLM's earlier name: a grammar in EBNF or Lark.",
                            'root ::= "yes" | "no"'),
    "guided_json": Field("vLLM's earlier name: a JSON schema, or its text.", _SCHEMA),
    "guided_regex": Field("vLLM's earlier name: a pattern for the whole answer.", "[0-9]{4}"),
    "json_schema": Field("SGLang's and llama.cpp's JSON schema, or its text.", _SCHEMA),
    "regex": Field("SGLang's pattern for the whole answer.", "[0-9]{4}"),
    "structured_outputs": Field("vLLM's object of constraints.", {"choice": ["yes", "no"]}),
    "stream": Field("Answer with server-sent events.", False),
    "stream_options": Field("include_usage adds a last chunk with the usage.",
                            {"include_usage": True}),
    "ChatMessage.content": Field("A text, or parts of type text, refusal and thinking.",
                                 "Name a river."),
    "ChatMessage.role": Field("system, developer, user, assistant or tool.", "user"),
    "ChatMessage.tool_calls": Field("The calls that the assistant made.", None),
    "ChatMessage.reasoning": Field("vLLM's and OpenRouter's name of reasoning_content.", None),
    "ChatMessage.reasoning_details": Field("OpenRouter's list of thoughts.", None),
    "ChatMessage.refusal": Field("What the model said instead of an answer.", None),
    "ChatMessage.thinking_blocks": Field("litellm's list of thoughts.", None),
    "ChatRequest.logprobs": Field("Answer with the log probability of each token.", False),
    "ChatRequest.messages": Field("The chat so far.", [_MESSAGE]),
    "ChatRequest.tools": Field("Functions that the model may call.", [{"function": _FUNCTION}]),
    "ChatRequest.top_logprobs": Field("How many alternatives for each token, with logprobs.", None),
    "ChatRequest.weftline": Field("The request's session, and where its texts come from.",
                                  {"name": "draft"}),
    "CompletionRequest.logprobs": Field("Log probabilities, with this many alternatives.", None),
    "CompletionRequest.prompt": Field("A text, or several.", "The longest river of Europe is"),
    "EmbeddingsRequest.dimensions": Field("How many leading numbers of each vector to keep.", None),
    "EmbeddingsRequest.encoding_format": Field("float, or base64 of 32-bit floats.", "float"),
    "EmbeddingsRequest.truncate": _TRUNCATE,
    "RerankRequest.truncate": _TRUNCATE,
    "EmbeddingsRequest.input_type": Field("Taken, and not used.", None),
    "EmbeddingsRequest.metadata": Field("Taken, and not used.", None),
    "EmbeddingsRequest.input": Field("A text, or several.", "Where does the Rhine rise?"),
    "EmbeddingsRequest.model": Field("An embedder of this server. None is the first.", None),
    "JsonSchema.schema": Field("The schema.", _SCHEMA),
    "ProvenancePart.name": Field("The input of a template that the text is.", "topic"),
    "ProvenancePart.text": Field("The text.", "rivers"),
    "ServedTool.code": Field(
        "The argument that takes blocks of code in an answer; null of a tool that the model calls.",
        None,
    ),
    "ServedTool.engine": Field("The engine that runs the tool.", "tools"),
    "ServedTool.name": Field("The tool's name.", "price"),
    "ServedTool.streams": Field("Whether the tool takes its call piece by piece.", False),
    "ClientTool.effects": Field("What running it twice does: none, idempotent, once.", "once"),
    "ClientTool.lease_s": Field("A call waits so long for a client that is gone.", 60.0),
    "ClientTool.name": Field("One of the request's tools.", "calculate"),
    "Provenance.beats": Field("With open, the client promises heartbeats.", False),
    "Provenance.client_tools": Field("Tools that the client computes. They need a stream.", []),
    "Provenance.code_tool": Field("The tool that runs blocks of Python in the answer.", None),
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
    "RerankRequest.top_n": Field("How many of the best to keep.", 1),
    "ResponseFormat.json_schema": Field("The schema, for type json_schema.", {"schema": _SCHEMA}),
    "ResponseFormat.type": Field("text, json_object, json_schema, regex, grammar or "
                                 "structural_tag.", "json_object"),
    "ResponseFormat.schema": Field("A schema for type json_object, as llama.cpp has it.", _SCHEMA),
    "ResponseFormat.pattern": Field("The pattern of type regex.", "[0-9]{4}"),
    "ResponseFormat.regex": Field("The same.", "[0-9]{4}"),
    "ResponseFormat.grammar": Field("The text of type grammar, in EBNF or Lark.",
                                    'root ::= "yes" | "no"'),
    "ResponseFormat.value": Field("TGI's name of the regex or grammar.", "[0-9]{4}"),
    "ResponseFormat.format": Field("The format of type structural_tag, in xgrammar's words.",
                                   {"type": "const_string", "value": "yes"}),
    "ResponseFormat.structures": Field("The older form of type structural_tag.", [_STRUCTURE]),
    "ResponseFormat.triggers": Field("The texts behind which a structure follows.", ["<f"]),
    "ResponseFormat.at_least_one": Field("Whether one structure has to come.", False),
    "StructuredOutputs.json": Field("A JSON schema, or its text.", _SCHEMA),
    "StructuredOutputs.regex": Field("A pattern for the whole answer.", "[0-9]{4}"),
    "StructuredOutputs.choice": Field("The answer is one of these.", ["yes", "no"]),
    "StructuredOutputs.grammar": Field("A grammar in EBNF or Lark.", 'root ::= "yes" | "no"'),
    "StructuredOutputs.json_object": Field("Any JSON object.", True),
    "StructuredOutputs.structural_tag": Field("A structural tag, or its text.",
                                              {"structures": [_STRUCTURE], "triggers": ["<f"]}),
    "StructuredOutputs.disable_any_whitespace": Field(
        "JSON without line breaks and free spaces. Our own engine writes no other.", False
    ),
    "StructuredOutputs.disable_additional_properties": Field("Only false is taken.", False),
    "StructuredOutputs.whitespace_pattern": Field("Only null is taken.", None),
    "AddedTools.tools": Field("Functions that are offered besides those of the request.",
                              [{"type": "function", "name": "get_weather"}]),
    "AddedTools.type": Field("Always additional_tools.", "additional_tools"),
    "AllowedInChat.allowed_tools": Field("The mode and the tools.",
                                         {"mode": "auto", "tools": [_NAMED]}),
    "AllowedInChat.type": Field("Always allowed_tools.", "allowed_tools"),
    "AllowedNames.mode": Field("auto: any may be called. required: one must be.", "auto"),
    "AllowedNames.tools": Field("The functions that may be called, of those that are offered.",
                                [_NAMED]),
    "AllowedTools.mode": Field("auto: any may be called. required: one must be.", "auto"),
    "AllowedTools.tools": Field("The functions that may be called, of those that are offered.",
                                [{"type": "function", "name": "get_weather"}]),
    "AllowedTools.type": Field("Always allowed_tools.", "allowed_tools"),
    "ChosenTool.name": Field("The function that must be called.", "get_weather"),
    "ChosenTool.namespace": Field("The group of the function.", "mcp__sky__"),
    "InputCall.namespace": Field("The group of the function.", "mcp__sky__"),
    "NamespaceTool.description": Field("What the group is for.", "About the sky."),
    "NamespaceTool.name": Field("The group. The model knows a function by this, two underscores "
                                "and its own name.", "mcp__sky__"),
    "NamespaceTool.tools": Field("The functions of the group.",
                                 [{"type": "function", "name": "moon"}]),
    "NamespaceTool.type": Field("Always namespace.", "namespace"),
    "CustomFormat.definition": Field("The grammar that the input follows.", 'start: "a"+'),
    "CustomFormat.syntax": Field("lark or regex, for type grammar.", "lark"),
    "CustomFormat.type": Field("text or grammar.", "grammar"),
    "CustomTool.description": Field("What the tool does.", "Edits files."),
    "CustomTool.format": Field("The form of the input.", {"type": "text"}),
    "CustomTool.name": Field("The name by which the model calls it.", "edit"),
    "CustomTool.type": Field("Always custom.", "custom"),
    "InputCustomCall.call_id": Field("The id that the result names.", "call_1"),
    "InputCustomCall.input": Field("The text that the model gave to the tool.", "rm a"),
    "InputCustomCall.name": Field("The custom tool that was called.", "edit"),
    "InputCustomCall.type": Field("Always custom_tool_call.", "custom_tool_call"),
    "InputCall.call_id": Field("The id that the result names.", "call_1"),
    "InputCall.name": Field("The function that was called.", "get_weather"),
    "InputCall.type": Field("Always function_call.", "function_call"),
    "InputMessage.content": Field("A text, or parts of type input_text, output_text and refusal.",
                                  "Name a river."),
    "InputMessage.role": Field("system, developer, user or assistant.", "user"),
    "InputMessage.type": Field("Always message.", "message"),
    "InputResult.call_id": Field("The call that this is the result of.", "call_1"),
    "InputResult.output": Field("The result: a text, or parts of type input_text.", "sunny"),
    "InputResult.type": Field("function_call_output, or custom_tool_call_output for a custom tool.",
                              "function_call_output"),
    "OtherItem.id": Field("The id of the item.", "rs_1"),
    "InputThoughts.content": Field("The thoughts.", [{"type": "reasoning_text",
                                                      "text": "Rivers are many."}]),
    "InputThoughts.summary": Field("A summary, which counts where there is no content.", []),
    "InputThoughts.type": Field("Always reasoning.", "reasoning"),
    "OtherItem.type": Field("mcp_list_tools is passed over. Others are refused.",
                            "mcp_list_tools"),
    "OtherPart.type": Field("Refused.", "input_image"),
    "OtherTool.type": Field("A type that OpenAI runs is left out of the tools. Another is refused.",
                            "web_search"),
    "ThoughtPart.reasoning": Field("The thoughts, as LangChain names them.", None),
    "ThoughtPart.summary": Field("A summary of thoughts that are not sent.", None),
    "ThoughtPart.text": Field("The thoughts, as OpenAI and OpenRouter name them.", None),
    "ThoughtPart.thinking": Field("The thoughts, as Anthropic and Mistral name them.",
                                  "Rivers are many."),
    "ThoughtPart.type": Field("thinking, reasoning or another kind of thoughts.", "thinking"),
    "RefusalPart.refusal": Field("What the model said instead of an answer.", "I cannot say."),
    "RefusalPart.type": Field("Always refusal.", "refusal"),
    "ResponseTool.name": Field("The name by which the model calls it.", "get_weather"),
    "ConversationName.id": Field("The conversation.", "conv_1"),
    "items": Field("Messages, calls, their results and other items.", [_MESSAGE]),
    "metadata": Field("Up to 16 pairs of the client's own.", {"topic": "rivers"}),
    "ResponsesRequest.background": Field("Answer at once, and make the response in the background. "
                                         "GET it until its status is neither queued nor "
                                         "in_progress.", False),
    "ResponsesRequest.conversation": Field("The conversation whose items go before the input, and "
                                           "which gets the items of the input and the output.",
                                           "conv_1"),
    "ResponsesRequest.previous_response_id": Field("The response that is continued: its items, and "
                                                   "those that it continues, go before the input.",
                                                   "resp_1"),
    "ResponsesRequest.store": Field("Keep the response.", True),
    "ResponsesRequest.input": Field("A text; or messages, calls, their results and other items.",
                                    "Name a river."),
    "ResponsesRequest.instructions": Field("The system message.", "Be brief."),
    "ResponsesRequest.max_output_tokens": Field("The most tokens of the output.", 64),
    "ReasoningConfig.effort": Field("The effort, as in chats.", "low"),
    "ResponsesRequest.reasoning": Field("How much the model thinks.", {"effort": "low"}),
    "ResponsesRequest.text": Field("The form of the text.", {"format": {"type": "text"}}),
    "ResponsesRequest.tools": Field("Functions that the model may call, groups of them, and "
                                    "custom tools.",
                                    [{"type": "function", "name": "get_weather"}]),
    "ResponsesRequest.weftline": Field("The request's session.", {"name": "draft"}),
    "TextConfig.format": Field("text, json_object, or json_schema.", {"type": "json_object"}),
    "TextFormat.name": Field("A name for the schema. Taken and not used.", "city"),
    "TextFormat.schema": Field("The schema, for type json_schema.", _SCHEMA),
    "TextFormat.type": Field("text, json_object or json_schema.", "json_object"),
    "DetokenizeRequest.tokens": Field("Ids of the model's tokenizer.", [19556, 28]),
    "TokenizeRequest.add_special_tokens": Field("Whether a text gets the tokenizer's special "
                                                "tokens.", True),
    "TokenizeRequest.messages": Field("A chat.", [_MESSAGE]),
    "TokenizeRequest.prompt": Field("A text.", "Name a river."),
    "TokenizeRequest.return_token_strs": Field("Answer with the tokens as text, too.", True),
    "TokenizeRequest.tools": Field("The functions that the chat offers.",
                                   [{"type": "function", "function": _FUNCTION}]),
    "StreamOptions.continuous_usage_stats": Field("Add the usage so far to every chunk.", True),
    "StreamOptions.include_usage": Field("Add a last chunk with the usage.", True),
    "TextPart.text": Field("The text.", "Name a river."),
    "TextPart.type": Field("text in chats; input_text or output_text in responses.", "text"),
}  # fmt: skip

_KINDS = {
    f"{STEPS[name].__name__}.{field}": said
    for name, kind in KINDS.by_name.items()
    for field, said in kind.says.items()
}
_SAMPLING = {name: Field(one.says, one.example) for name, one in PARAMETERS.items()}

FIELDS: Mapping[str, Field] = MappingProxyType(
    {**_SAMPLING, **_OF_ALL, **_KINDS, **ANTHROPIC, **_STEPS, **_CALLS, **_OPENAI}
)


def field_of(kind: str, name: str) -> Field:
    """What the field `name` of a `kind` means. Raises KeyError for one that is not described."""
    return FIELDS.get(f"{kind}.{name}") or FIELDS[name]
