"""The live page under load, in a real browser: lanes move, a chat is completed, nothing overflows."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.end_to_end.agent_threads import agent_threads
from tests.end_to_end.chromium import tab
from tests.end_to_end.serving import Served, serving

SCREENSHOTS = os.environ.get("SCREENSHOTS_INTO")
"""A folder to leave them in, for somebody to look at."""

SLOW = (
    "--engine",
    "scripted",
    "--scripted",
    "step_seconds=0.02,prefill_tokens_per_step=60",
    "--max-slots",
    "6",
)
EVIL = "<img src=x onerror=boom()>"
OVERFLOW = """
[...document.querySelectorAll("section,header,h1,h2,.lane,.bar,form,input,textarea,button,small")]
  .filter(one => !one.closest(".scroll"))
  .filter(one => one.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map(one => one.tagName + "#" + one.id)"""
GIVE_KEY = """
document.querySelector("#key").value = "{}";
document.querySelector("#keyform button").click()"""

ANOTHER_ENGINE = """
const one = snapshot;
snapshot = s => one({...s, engines: [...s.engines, {...s.engines[0], engine: "1", condition: "restarting",
  restarts: 2, last_death: "<img src=x onerror=boom()>" + " killed".repeat(60), stalled_seconds: 0}]})"""
"""A second line in every snapshot that the server sends."""


@contextmanager
def load(served: Served, agents: int = 14) -> Iterator[None]:
    """Agents that begin alike and go on, until the block is left."""

    def agent(number: int, over: threading.Event) -> None:
        text = "You are an agent. " * 12 + f"Number {number}. " * 4
        while not over.is_set():
            text += " And more."
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": 30 + number}
            tenant = EVIL if number == 0 else ("acme", "globex")[number % 2]
            headers = {"content-type": "application/json", "x-tenant": tenant, "x-session-id": f"s{number}"}
            url = served.url + "/v1/chat/completions"
            with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=60) as answer:
                answer.read()

    with agent_threads(agent, agents):
        yield


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_shows_a_busy_server(width: int, scheme: str, tmp_path: Path) -> None:
    """Lanes, queue, figures, requests and a chat by keyboard alone; clients' words are no markup."""
    with (
        serving(*SLOW, "--tenant-header", "x-tenant") as served,
        load(served),
        tab(tmp_path / "profile") as page,
    ):
        page.open(served.url, width, scheme=scheme)
        page.until('document.querySelector("#state").textContent === "ready"')
        page.until('document.querySelectorAll("#lanes .lane").length >= 6')
        page.until('document.querySelectorAll("#recent tr").length > 3')
        page.until('document.querySelectorAll("#tenants td").length > 5')
        page.until('Number(document.querySelector("#rate").textContent) > 0')
        page.until('/ m?s . /.test(document.querySelector("#ttft").textContent)')
        page.until('document.querySelectorAll("#trunks tr").length > 0')
        page.ask('document.querySelector("#prompt").focus()')
        page.press("Tab")
        page.press("Tab")
        assert page.ask("document.activeElement.id") == "send"
        page.press("Enter", "\r")
        page.until('document.querySelector("#life2").textContent.includes("first token")')
        if SCREENSHOTS:
            page.screenshot(Path(SCREENSHOTS) / f"live-{width}.png")
        page.until('!document.querySelector("#send").disabled')
        life = page.ask('document.querySelector("#life2").textContent')
        assert "64 tokens" in life
        assert "cached" in life
        assert page.ask('document.querySelector("#answer").textContent.length') > 0
        assert page.ask(OVERFLOW) == []
        cut = '[...document.querySelectorAll(".big")].filter(one => one.scrollWidth > one.clientWidth).length'
        assert page.ask(cut) == 0
        assert page.ask("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert page.ask('document.querySelectorAll("img").length') == 0
        assert page.complaints == []


@pytest.mark.parametrize("width", [1280, 390])
def test_several_engines_have_a_line_each(width: int, tmp_path: Path) -> None:
    """One engine has none: the page's figures are its own. A line says what its engine died of."""
    with serving(*SLOW) as served, load(served, 3), tab(tmp_path / "profile") as page:
        page.open(served.url, width)
        page.until('document.querySelector("#state").textContent === "ready"')
        assert page.ask('document.querySelector("#pool").hidden')
        page.ask(ANOTHER_ENGINE)
        page.until('!document.querySelector("#pool").hidden')
        page.until('document.querySelector("#state").textContent === "1 of 2 engines ready"')
        assert page.ask('document.querySelector("#state").className') == "chip bad"
        rows = '[...document.querySelectorAll("#engines tr")].map(row => row.children[{}].textContent)'
        assert page.ask(rows.format(0)) == ["0", "1"]
        assert page.ask(rows.format(1)) == ["ready", "restarting"]
        page.until(rows.format(2) + '.every(text => text.endsWith(" of 6"))')
        assert page.ask(rows.format(6))[0] == ""
        assert page.ask(rows.format(6))[1].endswith("killed (2 restarts)")
        assert page.ask(OVERFLOW) == []
        assert page.ask("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert page.ask('document.querySelectorAll("img").length') == 0
        assert page.complaints == []
        if SCREENSHOTS:
            page.screenshot(Path(SCREENSHOTS) / f"live-engines-{width}.png")


def test_the_page_asks_for_an_operators_key(tmp_path: Path) -> None:
    """Without one it shows nothing of the server; a tenant's is not enough."""
    keys = "acme:secret-one,ops:secret-two admin"
    with serving(*SLOW, "--api-key", keys) as served, tab(tmp_path / "profile") as page:
        page.open(served.url, 1280)
        page.until('document.querySelector("#state").textContent === "needs a key"')
        page.ask(GIVE_KEY.format("secret-one"))
        page.until('document.querySelector("#state").textContent === "needs an operator\'s key"')
        page.ask(GIVE_KEY.format("secret-two"))
        page.until('document.querySelector("#state").textContent === "ready"')
        page.until('document.querySelector("#memory2").textContent.length > 0')


def test_the_page_is_one_file_that_asks_nobody_else() -> None:
    """It works where there is no network; and it is small."""
    text = (Path(__file__).parents[2] / "api" / "live.html").read_text("utf-8")
    assert "http://" not in text
    assert "https://" not in text
    assert "innerHTML" not in text
    assert len(text) < 40_000
