// Vercel's AI SDK: the messages of one provider's session are sent by another one.
import { EDIT, ELSEWHERE, ELSEWHERE_URL, ENOUGH, HERE, ON, PLAIN, READ, SCHEMAS, STORY, WAY } from "./session.mjs";
import { called, library, told, version } from "./session.mjs";

const { generateText, isStepCount, jsonSchema, streamText, tool } = await library("ai");
const { createOpenAI } = await library("@ai-sdk/openai");
const { createOpenAICompatible } = await library("@ai-sdk/openai-compatible");
const { createAnthropic } = await library("@ai-sdk/anthropic");
const { createOpenResponses } = await library("@ai-sdk/open-responses");

const apiKey = "unused";
// What it keeps itself, encrypted thoughts included.
const sealed = { store: false, include: ["reasoning.encrypted_content"], reasoningSummary: "auto", forceReasoning: true };
const providers = {
  openai: (url) => createOpenAI({ baseURL: `${url}/v1`, apiKey }),
  "openai-compatible": (url) => createOpenAICompatible({ name: "penstock", baseURL: `${url}/v1`, apiKey }),
  anthropic: (url) => createAnthropic({ baseURL: `${url}/v1`, apiKey }),
  sealed: (url) => createOpenAI({ baseURL: `${url}/v1`, apiKey }),
  "open-responses": (url) => createOpenResponses({ name: "penstock", url: `${url}/v1/responses`, apiKey }),
};
const other = {
  openai: "openai-compatible",
  "openai-compatible": "anthropic",
  anthropic: "openai",
  sealed: "openai-compatible",
  "open-responses": "anthropic",
};

const tools = Object.fromEntries(
  Object.entries(SCHEMAS).map(([name, schema]) => [
    name,
    tool({ inputSchema: jsonSchema(schema), execute: (input) => called(name, input) }),
  ]),
);
const messages = [];
const providerOptions = WAY === "sealed" ? { openai: sealed } : {};
const common = { tools, stopWhen: isStepCount(5), maxRetries: 0, providerOptions };
const here = providers[WAY](HERE)("tiny");
const elsewhere = providers[other[WAY]](ELSEWHERE_URL)("tiny");

async function ask(model, question) {
  messages.push({ role: "user", content: question });
  const result = streamText({ model, messages, ...common, onError: ({ error }) => { throw error; } });
  for await (const _ of result.textStream);
  messages.push(...(await result.responseMessages));
  return await result.text;
}

messages.push({ role: "user", content: PLAIN });
const first = await generateText({ model: here, messages, ...common });
messages.push(...first.responseMessages);
const answers = [first.text, await ask(here, READ), await ask(here, EDIT)];
messages.push({ role: "user", content: STORY });
let had = "";
const stopped = new AbortController();
const story = streamText({ model: here, messages, ...common, abortSignal: stopped.signal });
for await (const text of story.textStream) {
  had += text;
  if (had.includes(ENOUGH)) {
    stopped.abort();
    break;
  }
}
messages.push({ role: "assistant", content: had });
answers.push(await ask(here, ON), await ask(elsewhere, ELSEWHERE));
told({ version: `${version("ai")}, ${version(`@ai-sdk/${WAY === "sealed" ? "openai" : WAY}`)}`, answers, had });
