// The Vercel AI SDK against modeld: `node vercel.mjs BASE_URL SCENARIO` prints what the scenario saw, as JSON.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, streamText, tool } from "ai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false; // they go into the result instead

const [baseURL, scenario] = process.argv.slice(2);
const modeld = createOpenAICompatible({
  name: "modeld",
  baseURL,
  apiKey: "x",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const Weather = z.object({ city: z.enum(["Paris", "Rome"]), celsius: z.boolean() });
const prompt = "What is the weather in Paris?";
const common = { prompt, temperature: 0, maxRetries: 0 };

async function read(result) {
  const types = [];
  for await (const part of result.fullStream) {
    if (part.type === "error") throw part.error;
    types.push(part.type);
  }
  return {
    types,
    text: await result.text,
    reasoning: (await result.reasoningText) ?? null,
    calls: (await result.toolCalls).map(({ toolName, input, invalid }) => ({ toolName, input, invalid: invalid ?? false })),
    finish: await result.finishReason,
    usage: await result.usage,
    warnings: (await result.warnings) ?? [],
  };
}

const scenarios = {
  text: () => read(streamText({ ...common, model: modeld("plain"), maxOutputTokens: 8 })),

  thinking: () =>
    read(
      streamText({
        ...common,
        model: modeld("aware"),
        maxOutputTokens: 60,
        providerOptions: { modeld: { chat_template_kwargs: { enable_thinking: true } } },
      }),
    ),

  tool: () =>
    read(
      streamText({
        ...common,
        model: modeld("plain"),
        maxOutputTokens: 200,
        toolChoice: { type: "tool", toolName: "get_weather" },
        tools: { get_weather: tool({ description: "Tell the weather in a city", inputSchema: Weather }) },
      }),
    ),

  async object() {
    const result = await generateText({
      ...common,
      model: modeld("plain"),
      maxOutputTokens: 200,
      output: Output.object({ schema: Weather }),
    });
    return { output: result.output, finish: result.finishReason, warnings: result.warnings ?? [] };
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
