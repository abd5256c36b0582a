// openai-node: chat completions, whose messages the program keeps, and responses, where each turn names the one before
// it and the last server gets the items.
import { EDIT, ELSEWHERE, ELSEWHERE_URL, ENOUGH, HERE, ON, PLAIN, READ, SCHEMAS, STORY, WAY } from "./session.mjs";
import { called, library, told, version } from "./session.mjs";

const { default: OpenAI } = await library("openai");
const client = (url) => new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused", maxRetries: 0 });
const said = (role, content) => ({ role, content });

async function chat(here, elsewhere) {
  const tools = Object.entries(SCHEMAS).map(([name, parameters]) => ({
    type: "function",
    function: { name, parameters },
  }));
  const messages = [said("user", PLAIN)];
  async function ask(client, question) {
    messages.push(said("user", question));
    for (;;) {
      const stream = client.chat.completions.stream({ model: "tiny", messages, tools });
      const message = await stream.finalMessage();
      messages.push(message);
      if (!message.tool_calls?.length) return message.content;
      for (const { id, function: asked } of message.tool_calls)
        messages.push({ role: "tool", tool_call_id: id, content: called(asked.name, asked.arguments) });
    }
  }
  const first = await here.chat.completions.create({ model: "tiny", messages, tools });
  messages.push(first.choices[0].message);
  const answers = [first.choices[0].message.content, await ask(here, READ), await ask(here, EDIT)];
  messages.push(said("user", STORY));
  let had = "";
  const stream = await here.chat.completions.create({ model: "tiny", messages, tools, stream: true });
  for await (const chunk of stream) {
    had += chunk.choices[0].delta.content ?? "";
    if (had.includes(ENOUGH)) break;
  }
  messages.push(said("assistant", had));
  answers.push(await ask(here, ON), await ask(elsewhere, ELSEWHERE));
  return { answers, had };
}

async function responses(here, elsewhere) {
  const tools = Object.entries(SCHEMAS).map(([name, parameters]) => ({
    type: "function",
    name,
    parameters,
    strict: true,
  }));
  const items = [said("user", PLAIN)];
  let newest;
  async function ask(client, question, stored) {
    let sent = [said("user", question)];
    for (;;) {
      items.push(...sent);
      const more = stored ? { input: sent, previous_response_id: newest } : { input: items };
      const response = await client.responses.stream({ model: "tiny", tools, ...more }).finalResponse();
      newest = response.id;
      items.push(...response.output);
      const calls = response.output.filter((item) => item.type === "function_call");
      if (!calls.length) return response.output_text;
      sent = calls.map((call) => ({
        type: "function_call_output",
        call_id: call.call_id,
        output: called(call.name, call.arguments),
      }));
    }
  }
  const first = await here.responses.create({ model: "tiny", input: items, tools });
  newest = first.id;
  items.push(...first.output);
  const answers = [first.output_text, await ask(here, READ, true), await ask(here, EDIT, true)];
  let had = "";
  const asked = { model: "tiny", input: STORY, tools, previous_response_id: newest, stream: true };
  for await (const event of await here.responses.create(asked)) {
    if (event.type === "response.output_text.delta") had += event.delta;
    if (had.includes(ENOUGH)) break;
  }
  items.push(said("user", STORY), said("assistant", had));
  answers.push(await ask(here, ON), await ask(elsewhere, ELSEWHERE));
  return { answers, had };
}

const shown = await { chat, responses }[WAY](client(HERE), client(ELSEWHERE_URL));
told({ version: version("openai"), ...shown });
