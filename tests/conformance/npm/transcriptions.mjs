// The npm SDK's transcriptions against modeld: `node transcriptions.mjs BASE_URL SCENARIO FILE`, JSON comes out.

import fs from "node:fs";
import OpenAI, { toFile } from "openai";

const [baseURL, scenario, path] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "x", maxRetries: 0 });
const ask = (more) =>
  client.audio.transcriptions.create({ model: "ears", file: fs.createReadStream(path), ...more });

async function refusal(call) {
  try {
    await call();
  } catch (error) {
    const { status, code, param, requestID } = error;
    return { name: error.constructor.name, status, code, param, requestID };
  }
  return null;
}

const scenarios = {
  async formats() {
    return {
      json: await ask(),
      verbose: await ask({ response_format: "verbose_json", timestamp_granularities: ["word", "segment"] }),
      text: await ask({ response_format: "text" }),
      vtt: await ask({ response_format: "vtt" }),
    };
  },

  async translation() {
    const translate = (more) =>
      client.audio.translations.create({ model: "many", file: fs.createReadStream(path), ...more });
    return {
      srt: await translate({ response_format: "srt", prompt: "Weather." }),
      heard: await ask({ model: "many", response_format: "verbose_json" }),
    };
  },

  async stream() {
    const events = [];
    for await (const event of await ask({ stream: true })) events.push(event);
    return events;
  },

  async errors() {
    return {
      junk: await refusal(async () => ask({ file: await toFile(Buffer.from("<html>"), "a.mp3") })),
      language: await refusal(() => ask({ language: "fr" })),
      model: await refusal(() => ask({ model: "nope" })),
      translation: await refusal(() =>
        client.audio.translations.create({ model: "ears", file: fs.createReadStream(path) }),
      ),
    };
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
