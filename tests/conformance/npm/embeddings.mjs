// The npm SDK's embeddings against modeld: `node embeddings.mjs BASE_URL SCENARIO` prints what it saw, as JSON.

import OpenAI from "openai";

const [baseURL, scenario] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "x", maxRetries: 0 });
const input = ["A cat sits on the mat.", "A kitten rests on a rug.", "Stocks fell by three percent."];

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
  async vectors() {
    return {
      standard: await client.embeddings.create({ model: "vec", input }),
      floats: await client.embeddings.create({ model: "vec", input, encoding_format: "float" }),
      coded: await client.embeddings.create({ model: "vec", input, encoding_format: "base64" }),
      cut: await client.embeddings.create({ model: "cut", input, dimensions: 64 }),
    };
  },

  async errors() {
    const ask = (body) => refusal(() => client.embeddings.create({ model: "vec", input, ...body }));
    return {
      empty: await ask({ input: "" }),
      long: await ask({ input: ["a", "word ".repeat(600)] }),
      dimensions: await ask({ dimensions: 64 }),
      model: await ask({ model: "nope" }),
    };
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
