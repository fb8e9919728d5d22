// The npm SDK's chat with pictures: `node vision.mjs BASE_URL SCENARIO URL…` prints what it saw, as JSON.

import OpenAI from "openai";

const [baseURL, scenario, ...urls] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "x", maxRetries: 0 });

const asking = (url) => ({
  model: "eyes",
  max_tokens: 12,
  temperature: 0,
  cache_prompt: false,
  messages: [
    {
      role: "user",
      content: [
        { type: "text", text: "What is it?" },
        { type: "image_url", image_url: { url } },
      ],
    },
  ],
});

const scenarios = {
  async answers() {
    const seen = [];
    for (const url of urls) {
      const answer = await client.chat.completions.create(asking(url));
      seen.push({ text: answer.choices[0].message.content, usage: answer.usage });
    }
    return seen;
  },

  async stream() {
    const pieces = [];
    for await (const chunk of await client.chat.completions.create({ ...asking(urls[0]), stream: true })) {
      pieces.push(chunk.choices[0]?.delta?.content ?? "");
    }
    return pieces;
  },

  async refusals() {
    const seen = [];
    for (const url of urls) {
      try {
        await client.chat.completions.create(asking(url));
        seen.push(null);
      } catch (error) {
        const { status, code, param, requestID } = error;
        seen.push({ name: error.constructor.name, status, code, param, requestID });
      }
    }
    return seen;
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
