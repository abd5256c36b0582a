// Vercel's AI SDK: typed questions about one state. It checks the answers itself: sums, means, the choice.
import { HERE, library, told } from "./session.mjs";

const { experimental_decide } = await library("ai");
const { createOpenAI } = await library("@ai-sdk/openai");
const { answers, usage } = await experimental_decide({
  model: createOpenAI({ baseURL: `${HERE}/v1`, apiKey: "unused" }).decisionModel("tiny"),
  state: [{ type: "text", text: "Charged twice." }, { type: "json", value: { amount: 3 } }],
  questions: {
    angry: { type: "boolean", instructions: "The customer is angry.", criteria: { true: "bad words" } },
    team: { type: "choice", instructions: "Which team?", criteria: { billing: "payments", sales: null } },
    grade: { type: "score", instructions: "How urgent?", criteria: ["low", "middle", "high"] },
    many: { type: "choice", instructions: "Which?", criteria: Object.fromEntries([...Array(255).keys()].map((n) => [`o${n}`, null])) },
  },
  maxRetries: 0,
});
told({ answers, usage });
