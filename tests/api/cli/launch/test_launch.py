"""`penstock launch` as a user types it: a script stands in for the agent, in an empty HOME."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.api.cli.stand_in import standing_in

ROOT = Path(__file__).parents[4]
RECORD = """#!{python} -S
import json, os, sys
print(json.dumps([sys.argv[1:], dict(os.environ)]))
sys.exit(3)
"""


def test_an_agent_takes_the_commands_place(tmp_path: Path) -> None:
    """Exit code and output are its own; its configuration is a file in the user's caches alone. One that is
    absent is named with its installation."""
    home, agent = tmp_path / "home", tmp_path / "bin" / "qwen"
    for folder in (home, agent.parent):
        folder.mkdir()
    agent.write_text(RECORD.format(python=sys.executable))
    agent.chmod(0o755)

    def launched(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "api", "launch", "--url", server.url, *arguments],
            env={"HOME": str(home), "PATH": f"{agent.parent}:/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
            cwd=home,
            capture_output=True,
            text=True,
            timeout=60,
        )

    with standing_in() as server:
        done, absent = launched("qwen", "--", "-p", "two words"), launched("codex")
    assert (done.returncode, done.stderr) == (3, "")
    arguments, environment = json.loads(done.stdout)
    assert arguments == ["--auth-type", "openai", "--model", "tiny", "-p", "two words"]
    assert environment["OPENAI_BASE_URL"] == f"{server.url}/v1"
    configuration = Path(environment["QWEN_CODE_SYSTEM_DEFAULTS_PATH"])
    assert json.loads(configuration.read_text())["model"]["generationConfig"]["contextWindowSize"] == 131072
    assert [path for path in home.rglob("*") if path.is_file()] == [configuration]
    named = "penstock: Codex is not installed: no codex on PATH. Install it: npm install -g @openai/codex\n"
    assert (absent.returncode, absent.stderr) == (1, named)
