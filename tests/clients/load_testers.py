"""Other people's load testers and evaluation harnesses against a running server, each in each of its ways:

    python -m tests.clients.load_testers http://127.0.0.1:8000 --environments /tmp/load-testers

They bring PyTorch along (6 GB, some minutes to install), so that no test of CI runs them. Each gets a virtual
environment of its own in that folder, which is made where it is not there. The server serves the embedded
model, whose tokenizer they are given: none of them needs the network then. Exits 1 where a request failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from scheduler.models.embedded_model import EMBEDDED_FOLDER

REQUESTS = 16
STREAMS = 4
PROGRAM_SECONDS = 600
INSTALL_SECONDS = 900
MODEL = "penstock-embedded"
PACKAGES = {"guidellm": ["guidellm"], "aiperf": ["aiperf"], "lm_eval": ["lm-eval[api]", "transformers"]}


@dataclass(frozen=True)
class Outcome:
    answered: int
    failed: int
    detail: str = ""


@dataclass(frozen=True)
class Way:
    """One run of a program. `outcome` reads what it left in the folder."""

    program: str
    name: str
    arguments: list[str]
    outcome: Callable[[Path], Outcome]
    offline: bool = True
    """Whether it finds a tokenizer's folder when it knows of no hub."""


def guidellm(url: str, folder: Path) -> Iterator[Way]:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        for profile in ("kind=synchronous", f"kind=concurrent,streams={STREAMS}"):
            arguments = [
                *("run", "--disable-console", "--profile", profile),
                *("--backend", f"kind=openai_http,target={url},request_format={path}"),
                *("--constraint", f"kind=max_requests,count={REQUESTS}"),
                *("--tokenizer", f"kind=huggingface_auto,model={EMBEDDED_FOLDER}"),
                *("--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=16"),
                *("--output", f"kind=json,path={folder / 'guidellm.json'}"),
            ]
            yield Way("guidellm", f"{path} {profile.partition('=')[2]}", arguments, _of_guidellm)


def _of_guidellm(folder: Path) -> Outcome:
    (benchmark,) = json.loads((folder / "guidellm.json").read_text())["benchmarks"]
    requests = benchmark["requests"]
    failed = requests["errored"] or []
    return Outcome(len(requests["successful"] or []), len(failed), str(failed[:1])[:400] if failed else "")


WORDLESS = "InvalidInferenceResultError"


def aiperf(url: str, folder: Path) -> Iterator[Way]:
    for kind in ("messages", "responses", "completions", "chat"):
        for streaming in (False, True):
            arguments = [
                *("profile", "-m", MODEL, "--url", url, "--endpoint-type", kind, "--ui", "none"),
                *("--tokenizer", str(EMBEDDED_FOLDER), "--output-artifact-dir", str(folder)),
                *("--concurrency", str(STREAMS), "--request-count", str(REQUESTS)),
                *("--synthetic-input-tokens-mean", "64", "--output-tokens-mean", "16"),
                # It calls an answer without a word, which a small model may give, a failure.
                *("--extra-inputs", "ignore_eos:true"),
                *(["--streaming"] if streaming else []),
            ]
            yield Way(
                "aiperf", kind + (", streamed" if streaming else ""), arguments, _of_aiperf, offline=False
            )


def _of_aiperf(folder: Path) -> Outcome:
    export = json.loads((folder / "profile_export_aiperf.json").read_text())

    def count(name: str) -> int:
        return int((export.get(name) or {"avg": 0})["avg"])

    summary = export.get("error_summary") or []
    # Anthropic's API has no field that would keep a model from answering with nothing.
    wordless = sum(one["count"] for one in summary if one["error_details"]["type"] == WORDLESS)
    failed = count("error_request_count") - wordless
    return Outcome(count("request_count") + wordless, failed, str(summary)[:400] if summary else "")


DOCUMENTS = [
    {"question": "The stork stands on one leg. Where does the stork stand?", "answer": "on one leg"},
    {"question": "Ada has two boats. How many boats has Ada?", "answer": "two"},
    {"question": "The mill is red. Which colour has the mill?", "answer": "red"},
]
TASKS: dict[str, dict[str, Any]] = {
    "tiny_generation": {
        "output_type": "generate_until",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 16, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
    "tiny_likelihood": {"output_type": "loglikelihood", "metric_list": [{"metric": "acc"}]},
}


def lm_eval(url: str, folder: Path) -> Iterator[Way]:
    documents = folder / "documents.jsonl"
    documents.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    server = f"base_url={url}/v1/completions,model={MODEL},tokenizer={EMBEDDED_FOLDER}"
    for name, task in TASKS.items():
        task |= {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(documents)}},
            "test_split": "test",
            "doc_to_text": "{{question}}",
            "doc_to_target": "{{answer}}",
        }
        # JSON is YAML, which is how a task is described.
        (folder / f"{name}.yaml").write_text(json.dumps(task))
        arguments = [
            *("--model", "local-completions", "--tasks", name, "--include_path", str(folder)),
            *("--model_args", f"{server},tokenizer_backend=huggingface,num_concurrent=2,max_length=2048"),
        ]
        yield Way("lm_eval", name, arguments, lambda folder: Outcome(len(DOCUMENTS), 0))


TESTERS: dict[str, Callable[[str, Path], Iterator[Way]]] = {
    "guidellm": guidellm,
    "aiperf": aiperf,
    "lm_eval": lm_eval,
}


def installed(name: str, environments: Path) -> Path:
    """The folder of its programs."""
    folder = environments / name
    if not (folder / "bin" / name).exists():
        print(f"installing {name}")
        venv.create(folder, with_pip=True)
        python = str(folder / "bin" / "python")
        pip = [python, "-m", "pip", "install", "--quiet", *PACKAGES[name]]
        subprocess.run(pip, check=True, timeout=INSTALL_SECONDS)
    return folder / "bin"


def run(way: Way, programs: Path, folder: Path) -> Outcome:
    environment = {
        **os.environ,
        "OPENAI_API_KEY": "unused",
        **({"HF_HUB_OFFLINE": "1"} if way.offline else {}),
    }
    ran = subprocess.run(
        [programs / way.program, *way.arguments],
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        cwd=folder,
        env=environment,
    )
    if ran.returncode:
        return Outcome(0, 1, (ran.stdout + ran.stderr)[-400:])
    return way.outcome(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("url", help="of the server, without a path")
    parser.add_argument("--environments", type=Path, required=True)
    parser.add_argument("--only", choices=TESTERS, action="append")
    given = parser.parse_args()
    with urlopen(f"{given.url}/v1/models", timeout=10) as answer:
        assert MODEL in answer.read().decode(), f"the server at {given.url} does not serve {MODEL}"
    failed = 0
    for name in given.only or TESTERS:
        programs = installed(name, given.environments.resolve())
        folder = given.environments.resolve() / f"{name}-output"
        folder.mkdir(exist_ok=True)
        for way in TESTERS[name](given.url, folder):
            outcome = run(way, programs, folder)
            failed += outcome.failed
            print(
                f"{name}, {way.name}: {outcome.answered} answered, {outcome.failed} failed {outcome.detail}"
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
