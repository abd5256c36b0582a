"""`api/AGENTS.md`, generated from what `penstock launch` knows of agents: `python -m
tests.api.agents_page`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from api.cli.launch import shell
from api.cli.launch.agent import NO_KEY, Agent, LaunchTarget
from api.cli.launch.command import AGENTS
from api.cli.running_server import DEFAULT_URL, ListedModel
from tests.clients.outcomes import table

PAGE = Path(__file__).parents[2] / "api" / "AGENTS.md"
_MODEL = ListedModel("tiny", 131_072)
_TARGET = LaunchTarget(DEFAULT_URL, NO_KEY, _MODEL, _MODEL, (_MODEL,))

_START = """\
# Agents and frameworks, pointed at Penstock

```sh
penstock launch claude -- -p "What does note.txt say?"
```
starts an agent with the environment and the arguments that point it at the server on port 8000 (`--url`,
`PENSTOCK_URL`), or, where there is none, at one that ends with it (`--model`: which). Nothing is written
into your own configuration, which keeps applying to all else. What follows `--` is the agent's own, and so
are its exit code and the terminal. It gets the first served model, and the second one for small things, if
there are two (`--model`, `--small-model`); `max_model_len` of `/v1/models` and a quarter of it, at most
32,000, are its limits on context and answer. `--print` shows the command instead, with the server's key.

Each of these was run as written here, with a tool that it really used, at a server whose model is called
`tiny` (`--served-model-name tiny`; a name of your own works everywhere, and several may be given). The model
was played by a script, which writes the calls of each agent's own tools: the clients, the server and its
parsers are real, and the embedded model is too small for an agent's task. `dummy` is the key of a server that
has none. `python -m tests.clients.agents` runs those that are installed, each with settings of its own for
another server, which must not be heard. What they sent is kept, cut short, in `tests/api/agents/`, and
`tests/api/test_agents.py` sends it again; [sessions](#sessions) of all clients run in `tests/clients/`.

| `penstock launch` | client | version | date | speaks | first request |
|---|---|---|---|---|---|
"""

_BETWEEN = """\
| | litellm, LangChain, Pydantic AI, openai-agents, instructor | `tests/clients/` | each CI run | all | |

The flags below make each run by itself and without asking; give your own instead. A first request is mostly
the agent's own prompt and its tools, about four bytes a token.
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


def page() -> str:
    rows = "".join(_row(agent) for agent in AGENTS.values())
    parts = [f"{_START}{rows}{_BETWEEN}", *map(_section, AGENTS.values()), f"{_SESSIONS}{table()}\n", _END]
    return "\n".join(parts)


def _row(agent: Agent) -> str:
    tried = agent.tried
    cells = (
        f"`{agent.name}`",
        agent.title,
        tried.version,
        tried.date,
        agent.speaks,
        f"{tried.first_kilobytes} kB",
    )
    return f"| {' | '.join(cells)} |\n"


def _section(agent: Agent) -> str:
    return "\n".join([f"## {agent.title}", *_commands(agent), agent.notes])


def _commands(agent: Agent) -> Iterator[str]:
    setup = agent.setup(_TARGET)
    yield f"`{agent.install}`"
    yield f"```sh\npenstock launch {agent.name} -- {shlex.join(agent.example)}\n```"
    if agent.kept is None:
        yield f"is\n```sh\n{shell.text(setup, (agent.executable, *setup.arguments, *agent.example))}\n```"
    else:
        yield f"says what `{agent.kept.path}` would say:"
        yield f"```{agent.kept.language}\n{agent.kept.text(_TARGET)}\n```"


if __name__ == "__main__":
    PAGE.write_text(page())
