// The npm SDK's images against modeld: `node images.mjs BASE_URL MODEL SCENARIO` prints what it saw, as JSON.

import OpenAI, { toFile } from "openai";

const [baseURL, model, scenario] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "x", maxRetries: 0 });
const cat = { model, prompt: "a cat", size: "32x24" };

const drawn = async (fields) => client.images.generate({ ...cat, ...fields });
const file = (base64, name = "a.png") => toFile(Buffer.from(base64, "base64"), name, { type: "image/png" });

const scenarios = {
  async base64() {
    const { data, size, output_format, usage } = await drawn({ n: 2, response_format: "b64_json" });
    return { files: data.map((one) => one.b64_json), size, output_format, usage };
  },

  async formats() {
    const seen = {};
    for (const output_format of ["png", "jpeg", "webp"]) {
      const answer = await drawn({ output_format, response_format: "url" });
      const fetched = await fetch(answer.data[0].url);
      seen[output_format] = {
        named: answer.output_format,
        status: fetched.status,
        type: fetched.headers.get("content-type"),
        file: Buffer.from(await fetched.arrayBuffer()).toString("base64"),
      };
    }
    return seen;
  },

  async edit() {
    const { data } = await drawn();
    const answer = await client.images.edit({
      ...cat,
      image: await file(data[0].b64_json),
      mask: await file(data[0].b64_json, "mask.png"),
    });
    return answer.data.map((one) => one.b64_json);
  },

  async variation() {
    const { data } = await drawn();
    const image = await file(data[0].b64_json);
    const answer = await client.images.createVariation({ model, image, n: 2, size: "48x16" });
    return answer.data.map((one) => one.b64_json);
  },

  async stream() {
    const seen = [];
    for await (const event of await drawn({ stream: true, partial_images: 2 })) {
      const { type, size, output_format, partial_image_index, usage, b64_json } = event;
      seen.push({ type, size, output_format, partial_image_index, usage, file: b64_json });
    }
    return seen;
  },

  async refusals() {
    const page = Buffer.from("<html>no</html>").toString("base64");
    const seen = {};
    for (const [name, call] of Object.entries({
      size: () => drawn({ size: "60x64" }),
      page: async () => client.images.edit({ ...cat, image: await file(page) }),
    })) {
      try {
        await call();
      } catch (error) {
        const { status, code, param, requestID } = error;
        seen[name] = { name: error.constructor.name, status, code, param, requestID };
      }
    }
    return seen;
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
