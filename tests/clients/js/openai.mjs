// The `openai` package against the gateway at argv[2]; prints what was seen as one JSON object.
import OpenAI, { toFile } from "openai";

const base = process.argv[2];
const model = "gemma-4-e4b";
const messages = [{ role: "user", content: "Is water wet? Answer yes or no." }];
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "none", maxRetries: 0 });
const seen = {};

seen.chat = (await client.chat.completions.create({ model, messages, seed: 3 })).choices[0].message.content;

seen.stream = "";
for await (const piece of await client.chat.completions.create({ model, messages, seed: 3, stream: true })) {
  seen.stream += piece.choices[0]?.delta?.content ?? "";
}

const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
const called = await client.chat.completions.create({ model, messages, tools, tool_choice: "required" });
seen.tool = called.choices[0].message.tool_calls[0].function.name;

const schema = { type: "object", properties: { label: { type: "string" } }, required: ["label"] };
const response_format = { type: "json_schema", json_schema: { name: "verdict", schema } };
const formed = await client.chat.completions.create({ model, messages, response_format });
seen.schema = Object.keys(JSON.parse(formed.choices[0].message.content));

const response = await client.responses.create({ model, input: "hi", max_output_tokens: 9 });
seen.response = response.output_text;
seen.retrieved = (await client.responses.retrieve(response.id)).output_text;
seen.events = [];
for await (const event of await client.responses.create({ model, input: "hi", stream: true })) {
  seen.events.push(event.type);
}

seen.embedding = (await client.embeddings.create({ model, input: "a" })).data[0].embedding.length;
// This package writes a form's fields in the order given, so here the file comes before the model.
const file = await toFile(Buffer.alloc(300_000), "a.wav");
seen.audio = (await client.audio.transcriptions.create({ file, model: "e4b" })).text;
seen.models = [];
for await (const one of client.models.list()) seen.models.push(one.id);

const failed = async (work) => {
  try {
    await work();
  } catch (error) {
    return [error.constructor.name, error.status, error.code ?? null];
  }
};
seen.unknown = await failed(() => client.chat.completions.create({ model: "gemma", messages }));
seen.invalid = await failed(() => client.chat.completions.create({ model, messages, temperature: 9 }));
console.log(JSON.stringify(seen));
