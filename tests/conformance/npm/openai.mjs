// The npm SDK against modeld: `node openai.mjs BASE_URL SCENARIO [API_KEY]` prints what the scenario saw, as JSON.

import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const [baseURL, scenario, apiKey = "x"] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });

const Weather = z.object({ city: z.enum(["Paris", "Rome"]), celsius: z.boolean() });
const parameters = {
  type: "object",
  properties: { city: { enum: ["Paris", "Rome"] }, celsius: { type: "boolean" } },
  required: ["city", "celsius"],
  additionalProperties: false,
};
const tool = { type: "function", function: { name: "get_weather", description: "Tell the weather in a city", parameters } };
const named = { type: "function", function: { name: "get_weather" } };
const messages = [{ role: "user", content: "What is the weather in Paris?" }];
const short = { model: "plain", messages, temperature: 0, max_tokens: 8 };
const formed = { model: "plain", messages, temperature: 0, max_tokens: 200 };

async function all(items) {
  const found = [];
  for await (const item of items) found.push(item);
  return found;
}

async function refusal(call) {
  try {
    await call();
  } catch (error) {
    const { status, code, param, type, message, requestID } = error;
    return { name: error.constructor.name, status, code, param, type, message, requestID };
  }
  return null;
}

const scenarios = {
  async models() {
    return { listed: await all(client.models.list()), one: await client.models.retrieve("plain") };
  },

  async chat() {
    const { data, response, request_id } = await client.chat.completions.create(short).withResponse();
    return { answer: data, request_id, own_id: data._request_id, ms: response.headers.get("openai-processing-ms") };
  },

  async stream() {
    const stream = await client.chat.completions.create({
      ...short,
      stream: true,
      stream_options: { include_usage: true },
    });
    return { plain: await client.chat.completions.create(short), chunks: await all(stream) };
  },

  async helper() {
    const stream = client.chat.completions.stream({ ...short, stream_options: { include_usage: true } });
    const deltas = [];
    stream.on("content", (delta) => deltas.push(delta));
    return { final: await stream.finalChatCompletion(), deltas, usage: await stream.totalUsage() };
  },

  async tools() {
    const body = { ...formed, tools: [tool] };
    const plain = await client.chat.completions.create({
      ...body,
      tool_choice: "required",
      parallel_tool_calls: false,
    });
    const stream = await client.chat.completions.create({ ...body, tool_choice: named, stream: true });
    return { plain, chunks: await all(stream) };
  },

  async runTools() {
    const given = [];
    const run = (stream) =>
      client.chat.completions.runTools({
        ...formed,
        stream,
        tool_choice: named,
        tools: [
          {
            type: "function",
            function: {
              name: "get_weather",
              description: "Tell the weather in a city",
              parameters,
              parse: JSON.parse,
              function: (args) => {
                given.push(args);
                return "rain";
              },
            },
          },
        ],
      });
    for (const stream of [false, true]) await run(stream).done();
    return { given };
  },

  async schema() {
    const body = { ...formed, response_format: zodResponseFormat(Weather, "weather") };
    const parsed = await client.chat.completions.parse(body);
    const streamed = await client.chat.completions.stream(body).finalChatCompletion();
    return { parsed: parsed.choices[0].message, streamed: streamed.choices[0].message };
  },

  async sampling() {
    const two = await client.chat.completions.create({ ...short, n: 2, temperature: 1 });
    const logprobs = await client.chat.completions.create({ ...short, logprobs: true, top_logprobs: 2 });
    return { two, logprobs };
  },

  async completions() {
    const body = { model: "plain", prompt: "The capital of France is", max_tokens: 3, temperature: 0 };
    const stream = await client.completions.create({ ...body, stream: true });
    return { answer: await client.completions.create({ ...body, logprobs: 1 }), chunks: await all(stream) };
  },

  async errors() {
    const ask = (more) => () => client.chat.completions.create({ ...short, ...more });
    return {
      model: await refusal(ask({ model: "nope" })),
      value: await refusal(ask({ temperature: 9 })),
      streamed: await refusal(ask({ temperature: 9, stream: true })),
      context: await refusal(ask({ messages: [{ role: "user", content: "sheep ".repeat(4000) }] })),
    };
  },

  async key() {
    return { refusal: await refusal(() => client.models.list()) };
  },

  async keyed() {
    return { listed: await all(client.models.list()) };
  },

  // Leave two streams, one in each of the SDK's ways; then stay, so that it is not the process's end that
  // closes the connections.
  async leave() {
    const body = { ...short, max_tokens: 1500, ignore_eos: true, stream: true };
    const ids = [];
    for (const way of ["abort", "break"]) {
      const { data: stream, request_id } = await client.chat.completions.create(body).withResponse();
      ids.push(request_id);
      for await (const _ of stream) {
        if (way === "abort") stream.controller.abort();
        break;
      }
    }
    process.stdin.resume(); // until the parent closes it
    return { ids };
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
