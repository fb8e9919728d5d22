// The npm SDK's speech against modeld: `node speech.mjs BASE_URL SCENARIO` prints what it saw, as JSON.

import OpenAI from "openai";

const [baseURL, scenario] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "x", maxRetries: 0 });
const morning = { model: "kokoro", input: "Good morning.", voice: "alloy" };

const scenarios = {
  async formats() {
    const seen = {};
    for (const format of ["mp3", "wav", "pcm"]) {
      const answer = await client.audio.speech.create({ ...morning, response_format: format });
      const bytes = Buffer.from(await answer.arrayBuffer());
      seen[format] = { type: answer.headers.get("content-type"), start: bytes.subarray(0, 4).toString("latin1"), size: bytes.length };
    }
    return seen;
  },

  async pieces() {
    const answer = await client.audio.speech.create({
      ...morning,
      input: "The sun is up now. The birds sing.",
      response_format: "pcm",
    });
    const sizes = [];
    for await (const piece of answer.body) sizes.push(piece.length);
    return { type: answer.headers.get("content-type"), sizes };
  },

  async events() {
    const answer = await client.audio.speech.create({ ...morning, stream_format: "sse", response_format: "wav" });
    return { type: answer.headers.get("content-type"), text: await answer.text() };
  },

  async refusal() {
    try {
      await client.audio.speech.create({ ...morning, voice: "nobody" });
    } catch (error) {
      const { status, code, param, requestID } = error;
      return { name: error.constructor.name, status, code, param, requestID };
    }
    return null;
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
