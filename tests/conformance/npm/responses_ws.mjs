// The npm SDK's WebSocket: `node responses_ws.mjs BASE_URL SCENARIO [MCP_URL]` prints what the scenario saw, as JSON.

import OpenAI from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";

const [baseURL, scenario, serverUrl] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "x", maxRetries: 0 });
const socket = new ResponsesWS(client);
const events = socket.stream();

const OVER = ["response.completed", "response.incomplete", "response.failed", "error"];

// Asks, and gives the events up to the last one.
async function turn(body) {
  socket.send({ type: "response.create", ...body });
  const found = [];
  for (;;) {
    const { value, done } = await events.next();
    if (done) throw new Error("the stream is over");
    if (value.type === "error") throw value.error;
    if (value.type !== "message") continue; // connecting, open
    found.push(value.message);
    if (OVER.includes(value.message.type)) return found;
  }
}

const last = (found) => found[found.length - 1].response;

const scenarios = {
  async chain() {
    const body = { model: "plain", temperature: 0, max_output_tokens: 4, store: false };
    const first = await turn({ ...body, input: "Name a colour." });
    const second = await turn({ ...body, input: "Another.", previous_response_id: last(first).id });
    return { first, second };
  },

  async tools() {
    const tool = { type: "function", name: "get_weather", parameters: { type: "object", properties: {} }, strict: false };
    const body = { model: "caller", tools: [tool], store: false };
    const first = await turn({ ...body, input: "What is the weather?" });
    const input = last(first)
      .output.filter(({ type }) => type === "function_call")
      .map(({ call_id }) => ({ type: "function_call_output", call_id, output: "sunny" }));
    return { first, second: await turn({ ...body, input, previous_response_id: last(first).id }) };
  },

  async mcp() {
    const tools = [{ type: "mcp", server_label: "sums", server_url: serverUrl, require_approval: "always" }];
    const body = { model: "remote", tools, store: false };
    const first = await turn({ ...body, input: "Add one and two." });
    const request = last(first).output.find(({ type }) => type === "mcp_approval_request");
    const input = [{ type: "mcp_approval_response", approval_request_id: request.id, approve: true }];
    return { first, second: await turn({ ...body, input, previous_response_id: last(first).id }) };
  },
};

try {
  console.log(JSON.stringify(await scenarios[scenario]()));
} finally {
  socket.close();
}
