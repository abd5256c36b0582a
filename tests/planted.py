"""Plant faults in all rooms, and say which test of the gate finds each: `python -m tests.planted [ROOM ...]`.

It judges a deletion of tests: before one, plant faults where those tests looked. Each fault is planted
in a copy of the tree; the room's own tests of the gate are run until one fails, then all of the gate.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.gate import EXAMPLES, WORKERS
from tests.repo.tree import ROOT

_OWN = "tests/repo/test_gate.py::test_each_fault_still_has_its_place"


@dataclass(frozen=True, slots=True)
class Fault:
    file: str
    right: str
    """Stands once in the file."""
    wrong: str


FAULTS = (
    Fault("scheduler/requests/table.py", "self.cancelling.append(record)", "pass"),
    Fault("scheduler/engines/poison.py", "suspects[0].deaths >= limit", "suspects[0].deaths > limit"),
    Fault("scheduler/engines/placement.py", "one.engine != last,", "one.engine == last,"),
    Fault(
        "scheduler/intake/fair_queue.py",
        "if refund := self._ledger.refund(",
        "if refund := 0 * self._ledger.refund(",
    ),
    Fault("scheduler/answer/stop_strings.py", "len(text) - self._stops.beginning(text)", "len(text)"),
    Fault("scheduler/answer/schema_check.py", "all(any(self.accepts(", "all(all(self.accepts("),
    Fault("scheduler/answer/tool_calls/reading.py", "return found is not None", "return False"),
    Fault("scheduler/answer/tool_calls/tagged.py", "opened = max(0, opened - 1)", "pass"),
    Fault(
        "scheduler/grammar/answer_grammar.py", "        if tool.strict:\n", "        if not tool.strict:\n"
    ),
    Fault("scheduler/prompt/chat_template.py", "[_one_answer(turn)] if", "[turn[0]] if"),
    Fault("scheduler/prompt/template_reading.py", "if reading.loses else None", "if () else None"),
    Fault("scheduler/prompt/history_forms.py", "sorted(placed, key=itemgetter(0))", "placed"),
    Fault("scheduler/prompt/token_pieces.py", "_DIGEST_BYTES, key=secret)", "_DIGEST_BYTES)"),
    Fault("scheduler/shared/folder/rotary.py", "part.get(_ORIGINAL) or own", "own or part.get(_ORIGINAL)"),
    Fault("scheduler/shared/folder/weight_files.py", "if name in tensors:", "if name not in headers[file]:"),
    Fault("scheduler/engine/plan.py", " if row not in preempt]", "]"),
    Fault("scheduler/engine/mlx/batch.py", "layer.trim([width - tokens for", "layer.trim([0 * tokens for"),
    Fault("scheduler/engine/mlx/sampling/host_chooser.py", "[-params.top_k])", "[-params.top_k - 1])"),
    Fault(
        "scheduler/engine/prefix/radix_tree.py", "            lease.node.pins -= 1\n", "            pass\n"
    ),
    Fault(
        "scheduler/engine/disk/disk_tier.py",
        "            if not self._delete(",
        "            if self._delete(",
    ),
    Fault("scheduler/engine/budget/policy.py", "return min(bounds, default", "return max(bounds, default"),
    Fault("scheduler/fleet/residency.py", "not model.idle or model.pinned or", "not model.idle or"),
    Fault(
        "scheduler/processes/child_process.py", "            killed = True\n            process.kill()\n", ""
    ),
    Fault("scheduler/telemetry/history.py", "low + (edge - low)", "low + edge"),
    Fault("scheduler/telemetry/engine_totals.py", "range(steps)", "range(1)"),
    Fault("scheduler/telemetry/request_recorder.py", "self.number - number", "number"),
    Fault("scheduler/telemetry/vllm_names.py", "value_of(model.queued) + held", "held"),
    Fault("scheduler/telemetry/observation.py", "2 * record.cached_tokens >=", "2 * record.cached_tokens <"),
    Fault("api/http/request_body.py", "self._left_seconds <= self._least_seconds", "False"),
    Fault("api/http/beginnings.py", "max(self._reserved_until, now) + END_SECONDS", "now"),
    Fault("api/http/server.py", "open_connections >= self._limits", "open_connections > self._limits"),
    Fault("api/http/exchange.py", "self._phase < Phase.FINISHING", "self._phase < Phase.COMPLETE"),
    Fault("api/options/model_defaults.py", "in reversed(Source)", "in Source"),
    Fault("api/options/scheduler_settings.py", "name: value or None for", "name: value for"),
    Fault("api/options/option_values.py", "return share if share <= 1 else", "return share if share else"),
    Fault("api/cli/launch/agents.py", "context_tokens // _OUTPUT_SHARE", "context_tokens"),
    Fault("api/cli/launch/command.py", "if name not in setup.removed", "if name"),
    Fault("api/cli/doctor/findings.py", "facts.available_bytes < limit_bytes", "False"),
    Fault("api/cli/machine.py", "max(1, row.held(tokens))", "max(1, row.token_bytes)"),
    Fault("api/cli/batch/sending.py", "max(1, under_way // 2)", "under_way"),
    Fault("api/smollm2/registry.py", "== 206 else", "== 200 else"),
    Fault("api/bodies/unknown_fields.py", " and given is not None:", ":"),
    Fault("api/access/auth.py", "        if not found:\n", "        if not given:\n"),
    Fault("api/answers/event_stream.py", "if len(usages) == choices:", "if usages:"),
    Fault("api/dialects/openai/encode.py", "bool(end.malformed_calls)", "False"),
    Fault("api/dialects/anthropic/encode.py", '"tool_use" if calls else "end_turn"', '"end_turn"'),
    Fault("api/dialects/completions/encode.py", "len(echo) + entry.offset", "entry.offset"),
    Fault("api/dialects/embeddings.py", '"index": index', '"index": 0'),
    Fault("api/dialects/scores/routes.py", "index: -scores[index])", "index: scores[index])"),
    Fault("api/dialects/readings.py", "body.cache_salt or", ""),
    Fault("api/dialects/responses/encode.py", '"incomplete" if cut else "completed"', '"completed"'),
    Fault("api/cli/serve_command.py", "for name, text in left.items() if text", "for name, text in ()"),
)


def main() -> int:
    """Return 1 if a fault was not found."""
    rooms = sys.argv[1:] or [""]
    faults = [fault for fault in FAULTS if any(room in fault.file for room in rooms)]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
        (tree / ".venv").symlink_to(ROOT / ".venv")
        for fault in faults:
            finder = _finder(fault, tree)
            missed += finder is None
            print(f"{fault.file}: {fault.right.strip()!r}: {finder or 'NOT FOUND'}", flush=True)
    return 1 if missed else 0


def planted(fault: Fault, text: str) -> str:
    """Return the file's text with the fault."""
    assert text.count(fault.right) == 1, f"{fault.file} has no such place: {fault.right}"
    return text.replace(fault.right, fault.wrong)


def _finder(fault: Fault, tree: Path) -> str | None:
    """Return the first test of the gate that fails."""
    right = (tree / fault.file).read_text()
    (tree / fault.file).write_text(planted(fault, right))
    room = next(one for one in Path("tests", fault.file).parents if (tree / one).is_dir())
    try:
        return _failed(tree, [str(room)]) or _failed(tree, [])
    finally:
        (tree / fault.file).write_text(right)


def _failed(tree: Path, tests: list[str]) -> str | None:
    run = subprocess.run(
        # All but the test that each fault has its place.
        [*(sys.executable, "-m", "pytest", "--gate", "-x", "-q", "-n", WORKERS, "--deselect"), _OWN, *tests],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "EXAMPLES": EXAMPLES},
        capture_output=True,
        text=True,
    )
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.M)
    assert found or run.returncode in (0, 5), run.stdout[-2000:]
    return found and found[1]


if __name__ == "__main__":
    sys.exit(main())
