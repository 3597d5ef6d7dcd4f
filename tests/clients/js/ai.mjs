// The AI SDK with its openai-compatible provider against the gateway at argv[2]; prints what was seen as JSON.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embed, generateObject, generateText, jsonSchema, streamText, tool } from "ai";

const base = process.argv[2];
const provider = createOpenAICompatible({
  name: "gateway",
  baseURL: `${base}/v1`,
  apiKey: "none",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const model = provider("gemma-4-e4b");
const prompt = "Is water wet? Answer yes or no.";
const options = { model, prompt, seed: 3, maxRetries: 0 };
const seen = {};

const whole = await generateText(options);
seen.text = whole.text;
seen.tokens = whole.usage.outputTokens;

const stream = streamText(options);
seen.stream = "";
for await (const piece of stream.textStream) seen.stream += piece;
seen.finish = await stream.finishReason;

const inputSchema = jsonSchema({ type: "object", properties: { city: { type: "string" } }, required: ["city"] });
const tools = { get_weather: tool({ description: "Weather in a city", inputSchema }) };
const called = await generateText({ ...options, tools, toolChoice: "required" });
seen.tool = called.toolCalls[0].toolName;

const schema = jsonSchema({
  type: "object",
  properties: { label: { type: "string" } },
  required: ["label"],
  additionalProperties: false,
});
seen.object = Object.keys((await generateObject({ ...options, schema })).object);

seen.embedding = (await embed({ model: provider.embeddingModel("gemma-4-e4b"), value: "a" })).embedding.length;

try {
  await generateText({ ...options, model: provider("gemma") });
} catch (error) {
  seen.unknown = [error.name, error.statusCode];
}
console.log(JSON.stringify(seen));
