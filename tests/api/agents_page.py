"""The pages on agents, generated from what `penstock launch` knows of them: `python -m
tests.api.agents_page`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from api.cli.launch import shell
from api.cli.launch.agent import NO_KEY, Agent, LaunchTarget
from api.cli.launch.command import AGENTS
from api.cli.running_server import DEFAULT_URL, ListedModel
from tests.api.shortened_requests import CAPTURED, answer, request
from tests.clients.outcomes import table

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "docs" / "agents"
AGENTS_KEPT = sorted(path.stem for path in CAPTURED.glob("*.json"))
_MODEL = ListedModel("coder", 131_072)
"""The book's."""
_TARGET = LaunchTarget(DEFAULT_URL, NO_KEY, _MODEL, _MODEL, (_MODEL,))

_LINKS = {"](README.md#several-models)": "](../several-models.md)"}
"""Links of the agents' notes, as they are from the book."""

_START = """\
# Connect an agent

```sh
penstock launch claude -- -p "What does note.txt say?"
```
starts an agent with the environment and the arguments that point it at the server on port 8000 (`--url`,
`PENSTOCK_URL`), or, where there is none, at one that ends with it (`--model`: which). Nothing is written
into your own configuration, which keeps applying to all else. What follows `--` is the agent's own, and so
are its exit code and the terminal. It gets the first served model, and the second one for small things, if
there are two (`--model`, `--small-model`); `max_model_len` of `/v1/models` and a quarter of it, at most
32,000, are its limits on context and answer. `--print` shows the command instead, with the server's key.

An agent needs a model that was trained to use tools, such as `mlx-community/Qwen3-8B-4bit` or
`mlx-community/Qwen3-30B-A3B-Instruct-2507-4bit` ([what fits](../capacity.md)). Its first request is mostly
its own prompt and its tools, about four bytes a token: at the first question it may show nothing for minutes.
`launch` refuses a context that has no room for it.

| | `penstock launch` | speaks | first request |
|---|---|---|---|
"""

_OTHERS = """\
| [Cursor](cursor.md) | | OpenAI chat completions, from Cursor's servers | |
| [Zed](zed.md) | | OpenAI chat completions | |
| [Open WebUI](open-webui.md) | | OpenAI chat completions | |
| [n8n](n8n.md) | | OpenAI responses, chat completions | |

Anything else that speaks OpenAI's or Anthropic's API gets the address, with `/v1` for OpenAI's, and any text
as its key. What the agents and some libraries were seen to do: [AGENTS.md](../../api/AGENTS.md).

The pages show what `launch` gives each agent, for those who want to set it themselves. The served model is
called `coder` there (`--served-model-name coder`; a name of your own works everywhere, and several may be
given), and `dummy` is the key of a server that has none. The flags make each run by itself and without
asking; give your own instead. Behind that is each agent's first request, cut short, and what comes back: it
asks for a stream, the example for one object.
"""

_TRIED = """\
# Agents and libraries that were tried
How to connect each: [docs/agents/](../docs/agents/index.md).

Each command there was run as written, with a tool that the agent really used. The model was played by a
script, which writes the calls of each agent's own tools: the clients, the server and its parsers are real,
and the embedded model is too small for an agent's task. `python -m tests.clients.agents` runs those that are
installed, each with settings of its own for another server, which must not be heard. What they sent is kept,
cut short, in `tests/api/agents/`, and `tests/api/test_agents.py` sends it again.

| `penstock launch` | client | version | date |
|---|---|---|---|
"""

_LIBRARIES = """\
| | litellm, LangChain, Pydantic AI, openai-agents, instructor | `tests/clients/` | each CI run |
"""

_SESSIONS = """\
## Sessions
A session has six turns: a plain question, a tool that reads a file, a tool that edits it, a long answer in
whose middle the client is interrupted, "go on", and a question at another server, which knows none of it: by
another dialect where a framework has several; Codex, to and from a model name that it knows. The file is
right at the end, the last prompt has every turn, no answer was an error, and what the model wrote is what the
request's grammar allows. `ignored` is what the server named in `x-penstock-ignored`.

CI has the libraries' sessions. The agents' are run by hand, with what `make agents` installs (1.9 GB);
aider calls no tools, and has one run of `python -m tests.clients.agents`.
```sh
make agents
python -m tests.clients.outcomes
```
runs all that are installed and writes this table, which the tests compare with each run.
LangChain's `ChatAnthropic` closes a stream that is left when Python's garbage collector comes to it: until
then the model writes on.

"""

_END = """\
## Load testers
```sh
python -m tests.clients.load_testers http://127.0.0.1:8000 --environments /tmp/load-testers
```
installs GuideLLM, AIPerf and lm-eval, each in an environment of its own, and runs each in all of its ways
against a server of the embedded model. GuideLLM alone:
```sh
guidellm run --backend kind=openai_http,target=http://127.0.0.1:8000,request_format=/v1/chat/completions \\
  --profile kind=concurrent,streams=4 --constraint kind=max_requests,count=16 \\
  --tokenizer kind=huggingface_auto,model=MODEL --data kind=synthetic_text,prompt_tokens=64,output_tokens=16
```

## Evaluation harnesses
```sh
lm_eval --model local-completions --tasks TASK --model_args \\
  model=tiny,num_concurrent=16,tokenizer=MODEL,base_url=http://127.0.0.1:8000/v1/completions
lm_eval --model local-chat-completions --apply_chat_template --tasks TASK --model_args \\
  model=tiny,base_url=http://127.0.0.1:8000/v1/chat/completions,num_concurrent=16
```
`python -m tests.clients.evaluations --environment /tmp/lm-eval` holds lm-eval's scores to mlx-lm's own
evaluation: documents with four answers each and answers that are generated, also behind the chat template, 16
requests at once, by token ids and by text, one and four a body, in float32. With lm-eval 0.4.13 scores and
answers are the same for the embedded model, qwen3, gpt_oss, deepseek_v3, qwen3_next and rwkv7;
log-likelihoods differ by 2e-4 at most. It must be given the tokenizer.
"""


def pages() -> dict[Path, str]:
    agents = AGENTS.values()
    listed = "".join(
        f"| [{agent.title}]({_name(agent)}) | `{agent.name}` | {agent.speaks} |"
        f" {agent.tried.first_kilobytes} kB |\n"
        for agent in agents
    )
    tried = "".join(
        f"| `{agent.name}` | {agent.title} | {agent.tried.version} | {agent.tried.date} |\n"
        for agent in agents
    )
    found = {BOOK / _name(agent): _section(agent) for agent in agents}
    found[BOOK / "index.md"] = f"{_START}{listed}{_OTHERS}"
    found[ROOT / "api" / "AGENTS.md"] = "\n".join(
        [f"{_TRIED}{tried}{_LIBRARIES}", f"{_SESSIONS}{table()}\n", _END]
    )
    return found


def write() -> None:
    for path, text in pages().items():
        path.write_text(text)


def _name(agent: Agent) -> str:
    return f"{agent.title.lower().replace(' ', '-')}.md"


def _section(agent: Agent) -> str:
    notes = agent.notes
    for link, from_book in _LINKS.items():
        notes = notes.replace(link, from_book)
    return "\n".join([f"# {agent.title}", *_commands(agent), notes.rstrip("\n"), "", *_example(agent)])


def _commands(agent: Agent) -> Iterator[str]:
    setup = agent.setup(_TARGET)
    yield f"`{agent.install}`"
    yield f"```sh\npenstock launch {agent.name} -- {shlex.join(agent.example)}\n```"
    if agent.kept is None:
        yield f"is\n```sh\n{shell.text(setup, (agent.executable, *setup.arguments, *agent.example))}\n```"
    else:
        yield f"says what `{agent.kept.path}` would say:"
        yield f"```{agent.kept.language}\n{agent.kept.text(_TARGET)}\n```"


def _example(agent: Agent) -> Iterator[str]:
    kept = next(name for name in AGENTS_KEPT if name.partition("_")[0] == agent.executable)
    path, body = request(kept, _MODEL.name)
    yield "## What it asks"
    yield (
        f"```sh\ncurl -s '{DEFAULT_URL}{path}' -H 'content-type: application/json' -d @- <<'END'\n"
        f"{_written(body)}\nEND\n```"
    )
    yield f"```json\n{_written(answer(kept))}\n```\n"


def _written(value: dict[str, Any]) -> str:
    """A line for each field, and for each entry of a list."""
    lines = []
    for name, one in value.items():
        if isinstance(one, list):
            entries = ",\n    ".join(json.dumps(entry, ensure_ascii=False) for entry in one)
            lines.append(f"  {json.dumps(name)}: [\n    {entries}\n  ]")
        else:
            lines.append(f"  {json.dumps(name)}: {json.dumps(one, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "\n}"


if __name__ == "__main__":
    write()
