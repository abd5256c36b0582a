"""What came of each client's session, as `api/AGENTS.md` shows it:

    python -m tests.clients.outcomes [CLIENT ...]

has the sessions of these clients, by default of all that are installed, keeps what came of them in
`outcomes.json`, and writes the page. Exits 1 where a session failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.api.field_table import replace_table
from tests.clients.sessions import ANSWERS, BEFORE, ELSEWHERE, ON, PLAIN, READ, STORY, SessionServer


@dataclass(frozen=True, slots=True)
class Outcome:
    client: str
    version: str
    plain: str
    """The path of the plain question."""
    tools: str
    """Those that the model called."""
    stream: bool
    interrupted: str
    elsewhere: str
    """The path of the last question, at the other server."""
    ignored: tuple[str, ...]
    """What the server named in `x-penstock-ignored`."""


RECORDED = Path(__file__).parent / "outcomes.json"
PAGE = Path(__file__).parents[2] / "api" / "AGENTS.md"


def recorded() -> list[Outcome]:
    return [Outcome(**{**row, "ignored": tuple(row["ignored"])}) for row in json.loads(RECORDED.read_text())]


def table() -> str:
    """Return what a reader asks of the recorded outcomes as a table."""
    lines = ["| client | version | path | tools | ignored |", "|---|---|---|---|---|"]
    for row in recorded():
        ignored = ", ".join(f"`{name}`" for name in row.ignored)
        cells = (row.client, row.version, f"`{row.plain}`", row.tools, ignored)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def outcome(
    client: str, version: str, servers: tuple[SessionServer, SessionServer], interrupted: str
) -> Outcome:
    """Raise AssertionError unless each turn reached the model with all that was before it."""
    here, elsewhere = servers
    for server in servers:
        server.check()
    last = elsewhere.prompts_for(ELSEWHERE)[-1]
    for before in (PLAIN, ANSWERS[PLAIN], READ, BEFORE.strip(), ANSWERS[READ], STORY, ON, ANSWERS[ON]):
        assert before in last, (before, last[-4000:])
    assert BEFORE.strip() in here.prompts_for(ON)[-1]
    posted = [asked for asked in here.posted if PLAIN.encode() in asked.content]
    return Outcome(
        client,
        version,
        posted[0].path,
        ", ".join(dict.fromkeys(here.called)),
        any(asked.body.get("stream") for asked in here.posted),
        interrupted,
        elsewhere.posted[-1].path,
        tuple(sorted({*here.ignored, *elsewhere.ignored})),
    )


def _outcomes(names: list[str], folder: Path) -> Iterator[Outcome]:
    """Yield those of the sessions of one agent or one process, if it is installed."""
    # They import this module.
    from tests.clients import agent_sessions, library_sessions

    match names:
        case []:
            return
        case [name] if (agent := agent_sessions.SESSIONS.get(name)) is not None:
            if agent.executable is not None:
                yield agent_sessions.run_session(name, folder)
        case _:
            if library_sessions.SESSIONS[names[0]].absent is None:
                yield from library_sessions.run_sessions(names, folder)


def main() -> int:
    # They import this module.
    from tests.clients import agent_sessions, library_sessions

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("clients", nargs="*")
    chosen = parser.parse_args().clients
    rows = {row.client: row for row in recorded()} if RECORDED.exists() else {}
    failed = False
    names = [*agent_sessions.SESSIONS, *library_sessions.SESSIONS]
    if unknown := {*chosen} - {*names}:
        parser.error(f"no such client: {', '.join(unknown)}")
    for group in [*((name,) for name in agent_sessions.SESSIONS), *library_sessions.together()]:
        wanted = [name for name in group if name in (chosen or names)]
        with tempfile.TemporaryDirectory() as folder:
            try:
                for found in _outcomes(wanted, Path(folder)):
                    rows[found.client] = found
            except AssertionError as error:
                print(f"{', '.join(wanted)}: {error}", file=sys.stderr)
                failed = True
    kept = [asdict(rows[name]) for name in names if name in rows]
    RECORDED.write_text(json.dumps(kept, indent=1) + "\n")
    PAGE.write_text(replace_table(PAGE.read_text(), "| client | version | path |", table()))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
