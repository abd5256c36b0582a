"""One frame of `penstock top`: what it says, and that it fits."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from api.cli.top.figures import Figures
from api.cli.top.screen import View, count, duration, frame, size
from api.cli.top.snapshots import (
    CacheSnapshot,
    Engines,
    EngineSnapshot,
    MemorySnapshot,
    ModelSnapshot,
    Queue,
    Request,
    ServerSnapshot,
    Tenant,
)

REQUESTS = [
    Request("id-waits", state="submitted", tenant="acme", age_seconds=99.0),
    Request("id-decodes", "0", "acme", "s1", "decoding", 1000, 1000, 870, 42, 256, 3.2),
    Request("id-prefills", "1", "globex", "", "prefilling", 2000, 500, 0, 0, 64, 0.25),
    Request("chatcmpl-0123456789", state="decoding"),
]
SNAPSHOT = ServerSnapshot(
    time=10.0,
    generated_tokens=100.0,
    model="tiny",
    slots=8.0,
    engine=Engines("ready"),
    engines=[
        EngineSnapshot("0", "ready", slots=4, running_slots=2, running_bytes=1 << 20),
        EngineSnapshot("1", "starting", restarts=3),
    ],
    queue=Queue(
        1234, 56_789, 12.5, [Tenant("acme", 1200, 3, 12.5, 250_000.0), Tenant("", 34, 34, 1.0, 10.0)]
    ),
    running=REQUESTS,
    memory=MemorySnapshot(1 << 30, 2 << 30, 8 << 30, 5 << 30),
    models=[ModelSnapshot("tiny", "ready", 7, 2, 6 << 30), ModelSnapshot("large", "unloaded")],
)
FIGURES = Figures(1234.5, 3456.0, 2000.0, 0.37, (0.12, 1.5), (0.012, 0.03), (1.0, 5.0, 9.0))
VIEW = View("http://127.0.0.1:8000", SNAPSHOT, FIGURES, CacheSnapshot(True, 12, 3456))


def lines(view: View, width: int = 80, height: int | None = None) -> list[str]:
    """Return what a terminal shows, without the spaces at lines' ends."""
    console = Console(file=StringIO(), width=width, height=100, color_system=None)
    shown = console.render_lines(frame(view, width, height), pad=False)
    return ["".join(segment.text for segment in line).rstrip() for line in shown]


def text(view: View, width: int = 80, height: int | None = None) -> str:
    return "\n".join(lines(view, width, height))


FRAME = """\
penstock top  1 of 2 engines ready  tiny  http://127.0.0.1:8000
output  1234 tokens/s  ▁▅█
prefill 3456/s   cached 2000/s, 37% of prompts
TTFT    120 ms / 1.5 s   ITL 12 ms / 30 ms  (p50 / p95)
cache   ███████░░░░░░░░░░░░░ rows 1.0 GiB, prefixes 2.0 GiB of 8.0 GiB
        3,456 tokens in 12 nodes, weights 5.0 GiB
slots   ████████░░░░░░░░░░░░ 3 of 8 in use
queue   1,234 wait, 56.8k tokens, oldest 12.5 s

MODEL                                       STATE      RUNNING WAITING    MEMORY
tiny *                                      ready            2       7   6.0 GiB
large                                       unloaded         0       0     0 KiB

ENGINE                         STATE            SLOTS WAITING     CACHE RESTARTS
0                              ready           2 of 4       0   1.0 MiB        0
1                              starting        0 of 0       0     0 KiB        3

WAITING TENANT                               REQUESTS SESSIONS   OLDEST  SERVICE
acme                                            1,200        3   12.5 s   250.0k
(everybody)                                        34       34    1.0 s       10

RUNNING                         STATE         PROMPT CACHED       OUTPUT     AGE
acme / s1                       decoding       1,000    87%       42/256   3.2 s
globex                          prefill 25%    2,000     0%         0/64  250 ms
23456789                        decoding           0     0%          0/0    0 ms
acme                            submitted          0     0%          0/0  99.0 s"""


def test_a_frame_shows_rates_cache_slots_queue_and_who_runs_and_waits() -> None:
    assert text(VIEW) == FRAME


def test_drafts_have_a_line_where_there_are_any() -> None:
    drafting = replace(VIEW, figures=replace(FIGURES, drafts=(1.84, 0.625)))
    line = "drafts  1.8 tokens a row and step, 62% of the drafted accepted"
    assert [one for one in lines(drafting) if one not in lines(VIEW)] == [line]


@given(st.integers(1, 130), st.one_of(st.none(), st.integers(1, 60)))
@settings(derandomize=True)
def test_a_frame_fits_every_terminal(width: int, height: int | None) -> None:
    """Names as long as clients like, and of any characters."""
    long = Request("x", tenant="名前" * 99, session="\x1b[2J\n" * 9, state="decoding")
    busy = replace_running(SNAPSHOT, [long, *REQUESTS * 9])
    for view in (VIEW, replace(VIEW, snapshot=busy, trouble="lost " * 99), View("http://x")):
        found = lines(view, width, height)
        assert all(cell_len(line) <= width for line in found)
        assert not any(set(line) & {"\x1b", "\n"} for line in found)
        assert height is None or len(found) <= height


def replace_running(snapshot: ServerSnapshot, running: list[Request]) -> ServerSnapshot:
    return msgspec.structs.replace(snapshot, running=running)


def test_rows_without_room_are_counted() -> None:
    busy = replace(VIEW, snapshot=msgspec.structs.replace(QUIET, running=REQUESTS * 10))
    assert text(busy, height=20).splitlines()[-1] == "… 31 more"


QUIET = ServerSnapshot(time=1.0, generated_tokens=0.0, model="tiny", engine=Engines("ready"))
NOTHING = Figures(None, None, None, None, None, None, ())


@pytest.mark.parametrize(
    ("view", "says"),
    [
        (View("http://x"), "connecting"),
        (View("http://x", trouble="no server answers"), "not connected"),
        (View("http://x", QUIET, NOTHING), "queue   nobody waits"),
        (View("http://x", QUIET, NOTHING), "output  – tokens/s"),
        (View("http://x", QUIET, NOTHING, CacheSnapshot(enabled=False)), "no prefix cache"),
        (replace(VIEW, trouble="lost; trying again"), "lost; trying again"),
    ],
)
def test_what_is_not_known_is_said(view: View, says: str) -> None:
    assert says in text(view)


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        (Engines("ready", draining=True), "draining"),
        (Engines("ready", stalled_seconds=42.0), "no step for 42.0 s"),
        (
            Engines("restarting", restarts=2, last_death="out of memory\x1b[2J"),
            "2 restarts; last: out of memory",
        ),
    ],
)
def test_an_engine_in_trouble_is_named(engine: Engines, says: str) -> None:
    assert says in text(View("http://x", msgspec.structs.replace(QUIET, engine=engine), NOTHING))


def test_numbers_are_short() -> None:
    assert [count(one) for one in (None, 0.4, 9999, 10_000, 1_500_000)] == ["–", "0", "9999", "10.0k", "1.5M"]
    assert [duration(one) for one in (0.0123, 1.0, 99.94, 100.0, 7200.0)] == [
        "12 ms",
        "1.0 s",
        "99.9 s",
        "100 s",
        "2.0 h",
    ]
    assert [size(one) for one in (0, 2 << 20, 3 << 30)] == ["0 KiB", "2.0 MiB", "3.0 GiB"]
