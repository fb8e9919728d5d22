// The Vercel AI SDK on the Responses API: `node vercel_responses.mjs BASE_URL SCENARIO [MCP_URL]` prints what it saw.

import { createOpenAI } from "@ai-sdk/openai";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false; // they go into the result instead

const [baseURL, scenario, serverUrl] = process.argv.slice(2);
const openai = createOpenAI({ baseURL, apiKey: "x" });
const Weather = z.object({ city: z.enum(["Paris", "Rome"]), celsius: z.boolean() });
const prompt = "What is the weather in Paris?";
const common = { prompt, maxRetries: 0 };

const given = [];
const tools = {
  get_weather: tool({
    description: "Tell the weather in a city",
    inputSchema: Weather,
    execute: async (input) => {
      given.push(input);
      return "sunny";
    },
  }),
};

async function told(result) {
  return {
    text: await result.text,
    reasoning: (await result.reasoningText) ?? null,
    finish: await result.finishReason,
    usage: await result.usage,
    steps: (await result.steps).map(({ content }) => content.map(({ type }) => type)),
    warnings: (await result.warnings) ?? [],
    given,
  };
}

async function streamed(result) {
  const types = [];
  for await (const part of result.fullStream) {
    if (part.type === "error") throw part.error;
    types.push(part.type);
  }
  return { ...(await told(result)), types };
}

const sums = (requireApproval) => ({ mcp: openai.tools.mcp({ serverLabel: "sums", serverUrl, requireApproval }) });

const scenarios = {
  text: () => streamText({ ...common, model: openai.responses("plain"), maxOutputTokens: 8 }),

  generated: () => generateText({ ...common, model: openai.responses("thinker") }),

  thinking: () =>
    streamText({
      ...common,
      model: openai.responses("thinker"),
      providerOptions: { openai: { reasoningSummary: "auto", forceReasoning: true } },
    }),

  // Each turn names the items of the last one, which are kept here.
  loop: () => streamText({ ...common, model: openai.responses("caller"), tools, stopWhen: stepCountIs(4) }),

  // Nothing is kept: each turn sends all items, thoughts sealed.
  stateless: () =>
    generateText({
      ...common,
      model: openai.responses("caller"),
      tools,
      stopWhen: stepCountIs(4),
      providerOptions: { openai: { store: false, forceReasoning: true, reasoningSummary: "auto" } },
    }),

  object: () =>
    generateText({
      ...common,
      model: openai.responses("plain"),
      temperature: 0,
      maxOutputTokens: 100,
      output: Output.object({ schema: Weather }),
    }),

  mcp: () => streamText({ ...common, model: openai.responses("remote"), tools: sums("never") }),
};

const custom = {
  async chain() {
    const ask = (options) =>
      generateText({ ...common, model: openai.responses("thinker"), providerOptions: { openai: options } });
    const first = await ask({});
    const { responseId } = first.providerMetadata.openai;
    const second = await ask({ previousResponseId: responseId });
    return { id: responseId, texts: [first.text, second.text], lengths: [first, second].map(({ usage }) => usage.inputTokens) };
  },

  async approval() {
    const common = { model: openai.responses("remote"), tools: sums("always"), maxRetries: 0 };
    const answers = {};
    for (const approved of [true, false]) {
      const messages = [{ role: "user", content: "Add one and two." }];
      const first = await generateText({ ...common, messages });
      const { approvalId, toolCall } = first.content.find(({ type }) => type === "tool-approval-request");
      messages.push(...first.response.messages);
      const answer = { type: "tool-approval-response", approvalId, approved, providerExecuted: true };
      messages.push({ role: "tool", content: [answer] });
      const rest = await generateText({ ...common, messages });
      const results = rest.toolResults.map(({ output }) => output);
      answers[approved] = { ...(await told(rest)), results, asked: { id: approvalId, name: toolCall.toolName } };
    }
    return answers;
  },
};

let found;
if (scenario in custom) found = await custom[scenario]();
else {
  const result = await scenarios[scenario]();
  found = await (result.fullStream ? streamed(result) : told(result));
  if (scenario === "object") found.output = (await result.output) ?? null;
}
console.log(JSON.stringify(found));
