"""What came of a client's session, as `api/AGENTS.md` shows it."""

from __future__ import annotations

from dataclasses import dataclass

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
