// A program of Vercel's AI SDK, on the server whose base URL is its argument: it writes what it got as JSON.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({
  name: "weftline",
  baseURL: process.argv[2],
  apiKey: "none",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const model = provider("null");
const get_weather = tool({
  description: "The weather of a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `sunny in ${city}`,
});
const agent = {
  model,
  system: "Be brief.",
  prompt: "How is the weather?",
  tools: { get_weather },
  stopWhen: stepCountIs(3),
};

const whole = await generateText(agent);
const parts = streamText(agent);
const [streamed, reason] = [await parts.text, await parts.finishReason];
const River = z.object({ name: z.string(), km: z.number() });
const form = Output.object({ schema: River });
const river = await generateText({ model, prompt: "Name a river.", output: form });
const refused = await generateText({ model: provider("nosuch"), prompt: "Hi" }).catch((e) => e);

console.log(
  JSON.stringify({
    whole: whole.text,
    steps: whole.steps.map((step) => step.finishReason),
    streamed,
    reason,
    river: river.output,
    refused: APICallError.isInstance(refused) && [refused.statusCode, refused.message],
  }),
);
