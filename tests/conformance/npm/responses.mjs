// The npm SDK on the Responses API: `node responses.mjs BASE_URL SCENARIO [MCP_URL]` prints what the scenario saw.

import OpenAI from "openai";
import { zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const [baseURL, scenario, serverUrl] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "x", maxRetries: 0 });

const Weather = z.object({ city: z.enum(["Paris", "Rome"]), celsius: z.boolean() });
const tool = zodResponsesFunction({ name: "get_weather", description: "Tell the weather in a city", parameters: Weather });
const input = "What is the weather in Paris?";
const formed = { model: "plain", input, temperature: 0, max_output_tokens: 100 };

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

async function settled(id) {
  let found;
  do {
    found = await client.responses.retrieve(id);
  } while (["queued", "in_progress"].includes(found.status));
  return found;
}

const outputs = (response) =>
  response.output
    .filter((item) => item.type === "function_call")
    .map(({ call_id }) => ({ type: "function_call_output", call_id, output: "sunny" }));

const scenarios = {
  async answer() {
    const body = { ...formed, text: { format: zodTextFormat(Weather, "weather") } };
    const parsed = await client.responses.parse(body);
    const kept = await client.responses.retrieve(parsed.id);
    const items = await all(client.responses.inputItems.list(parsed.id));
    await client.responses.delete(parsed.id);
    const gone = await refusal(() => client.responses.retrieve(parsed.id));
    return { text: parsed.output_text, parsed: parsed.output_parsed, kept, items, gone, id: parsed._request_id };
  },

  async stream() {
    const body = { ...formed, max_output_tokens: 8 };
    return { plain: await client.responses.create(body), events: await all(await client.responses.create({ ...body, stream: true })) };
  },

  async helper() {
    const body = { ...formed, text: { format: zodTextFormat(Weather, "weather") } };
    const stream = client.responses.stream(body);
    const deltas = [];
    stream.on("response.output_text.delta", ({ delta }) => deltas.push(delta));
    const final = await stream.finalResponse();
    return { deltas, final, parsed: final.output_parsed };
  },

  // Its tools called, and their outputs sent, until it answers: on a chain, then with all items sent back.
  async tools() {
    const body = { model: "caller", tools: [tool] };
    const first = await client.responses.create({ ...body, input });
    const second = await client.responses.create({ ...body, input: outputs(first), previous_response_id: first.id });
    const given = [{ role: "user", content: input }, ...first.output, ...outputs(first)];
    const third = await client.responses.create({ ...body, input: given, store: false });
    const forced = await client.responses.parse({ ...formed, tools: [tool], tool_choice: { type: "function", name: "get_weather" } });
    return { first, second, third, forced: forced.output[0].parsed_arguments };
  },

  async background() {
    const begun = await client.responses.create({ model: "slow", input, background: true });
    const cancelled = await client.responses.cancel(begun.id);
    const stream = await client.responses.create({ model: "thinker", input, background: true, stream: true });
    const seen = [];
    for await (const event of stream) {
      seen.push(event);
      if (event.sequence_number === 4) break; // the connection is closed, the run goes on
    }
    const { id } = seen[0].response;
    const rest = await all(await client.responses.retrieve(id, { stream: true, starting_after: 4 }));
    const over = await settled(id);
    const helped = await client.responses.stream({ response_id: id }).finalResponse();
    const later = await all(await client.responses.retrieve(id, { stream: true, starting_after: 4 }));
    return { begun, cancelled, seen, rest, later, over, helped: helped.output_text };
  },

  async conversation() {
    const made = await client.conversations.create({ items: [{ type: "message", role: "user", content: "I like blue." }] });
    const first = await client.responses.create({ model: "thinker", input, conversation: made.id });
    const items = await all(client.conversations.items.list(made.id, { order: "asc" }));
    return { made, first, items };
  },

  async mcp() {
    const tools = [{ type: "mcp", server_label: "sums", server_url: serverUrl, require_approval: "never" }];
    const body = { model: "remote", input: "Add one and two.", tools };
    const events = await all(await client.responses.create({ ...body, stream: true }));
    return { plain: await client.responses.create(body), events };
  },

  async approval() {
    const tools = [{ type: "mcp", server_label: "sums", server_url: serverUrl, require_approval: "always" }];
    const body = { model: "remote", tools };
    const ask = () => client.responses.create({ ...body, input: "Add one and two." });
    const answer = (asked, approve) => {
      const { id } = asked.output.find(({ type }) => type === "mcp_approval_request");
      const input = [{ type: "mcp_approval_response", approval_request_id: id, approve }];
      return client.responses.create({ ...body, input, previous_response_id: asked.id });
    };
    const asked = await ask();
    const approved = await answer(asked, true);
    const twice = await refusal(() => answer(asked, true));
    return { asked, approved, twice, denied: await answer(await ask(), false) };
  },

  async counting() {
    const counted = await client.responses.inputTokens.count({ model: "plain", input });
    const answer = await client.responses.create({ ...formed, max_output_tokens: 1 });
    const compacted = await client.responses.compact({ model: "thinker", input: [{ role: "user", content: input }] });
    return { counted, answer, compacted };
  },

  async errors() {
    const ask = (more) => () => client.responses.create({ ...formed, ...more });
    return {
      model: await refusal(ask({ model: "nope" })),
      streamed: await refusal(ask({ model: "nope", stream: true })),
      hosted: await refusal(ask({ tools: [{ type: "web_search" }] })),
      previous: await refusal(ask({ previous_response_id: "resp_0" })),
    };
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
