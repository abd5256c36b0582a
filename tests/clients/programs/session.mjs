// A session, as `tests/clients/sessions.py` plays it, and its tools: what each program on it imports.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [, , here, elsewhere, folder, questions, way] = process.argv;
export const [HERE, ELSEWHERE_URL, WAY] = [here, elsewhere, way];
export const [PLAIN, READ, EDIT, STORY, ON, ELSEWHERE] = JSON.parse(questions);
// The client is interrupted when it has as much of the story.
export const ENOUGH = "Once upon a time";

const modules = process.env.CLIENTS_NODE_MODULES;
const require = createRequire(join(modules, "x.js"));
// Libraries are in an environment of their own, where an import does not look.
export const library = (name) => import(pathToFileURL(require.resolve(name)).href);
export const version = (name) => JSON.parse(readFileSync(join(modules, name, "package.json"), "utf8")).version;

const run = {
  read_file: ({ path }) => readFileSync(join(folder, path), "utf8"),
  edit_file: ({ path, old, new: text }) => {
    const file = join(folder, path);
    writeFileSync(file, readFileSync(file, "utf8").replace(old, text));
    return "edited";
  },
};
export const called = (name, given) => run[name](typeof given === "string" ? JSON.parse(given) : given);

const schema = (...names) => ({
  type: "object",
  properties: Object.fromEntries(names.map((name) => [name, { type: "string" }])),
  required: names,
  additionalProperties: false,
});
export const SCHEMAS = { read_file: schema("path"), edit_file: schema("path", "old", "new") };

export const told = (shown) => console.log(JSON.stringify(shown));
