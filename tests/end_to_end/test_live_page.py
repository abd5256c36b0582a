"""The live page under load, in a real browser: lanes move, a chat is completed, nothing overflows."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.end_to_end.chromium import Tab, tab, until
from tests.end_to_end.serving import Served, serving
from tests.examples import sampled

SCREENSHOTS = os.environ.get("SCREENSHOTS_INTO")
"""A folder to leave them in, for somebody to look at. README's picture is `live-1280.png` in 64 colours."""

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
[...document.querySelectorAll("section,header,h1,h2,.lane,.bar,form,input,select,textarea,button,small")]
  .filter(one => !one.closest(".scroll"))
  .filter(one => one.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map(one => one.tagName + "#" + one.id)"""
GIVE_KEY = """
document.querySelector("#key").value = "{}";
document.querySelector("#keyform button").click()"""

CHOOSE = """
{{const select = document.querySelector("#models");
  select.selectedIndex = {};
  select.dispatchEvent(new Event("change"))}}"""

ANOTHER_ENGINE = """
const one = snapshot;
snapshot = s => one({...s, engines: [...s.engines, {...s.engines[0], engine: "1", condition: "restarting",
  restarts: 2, last_death: "<img src=x onerror=boom()>" + " killed".repeat(60), stalled_seconds: 0}]})"""
"""A second line in every snapshot that the server sends."""


CHARTS_DRAWN = """
[...document.querySelectorAll(".chart")].every(one => one.querySelector("path[d^=M]")
  && /^at most [0-9]/.test(one.querySelector("b").textContent) && one.querySelector("svg").ariaLabel)"""
WIDE_TABLES = """
[...document.querySelectorAll(".scroll")]
  .filter(one => one.scrollWidth > one.clientWidth).map(one => one.ariaLabel)"""
"""Tables that would have to be moved sideways, at any width."""
OUT_OF_STEP = """
["rate", "prompts", "waiting"].map((id, i) => [id, document.querySelector("#" + id).textContent,
  document.querySelector("#c-" + ["rate", "prompts", "wait"][i] + " b").textContent])
  .filter(([, shown, most]) => Number(shown) > Number(most.match(/[0-9.]+/)[0]))"""
"""Headlines above what their own chart says was the most."""
PROMPTS = """
["prompts", "prompts2", "prompts3"]
  .map(id => Number(document.querySelector("#" + id).textContent.match(/[0-9]+/)))"""
NAMED_PREFIX = """
[...document.querySelectorAll("#shared_prefixes tr")]
  .some(one => /^You are an agent/.test(one.firstChild.textContent))"""
BADGES = {
    "{}": ("ready", "ok", ""),
    "{engine: {draining: true}}": ("draining", "amber", ""),
    "{models: [{condition: 'draining'}]}": ("draining", "amber", ""),
    "{models: [{condition: 'loading', waits_for: 'tiny, reading weights: 40 %'}]}": (
        "loading",
        "amber",
        "tiny, reading weights: 40 %",
    ),
    "{models: [{condition: 'quarantine'}], engine: {clearing: 'a request (3 of 9 prompt tokens)'}}": (
        "quarantine",
        "amber",
        "new requests wait for a request (3 of 9 prompt tokens)",
    ),
    "{models: [{condition: 'restarting'}], engine: {blocked: 'the engine died 5 times'}}": (
        "restarting",
        "bad",
        "the engine died 5 times",
    ),
}
"""What a snapshot says, as changes of a quiet server's, and the badge's text, its colour and the reason."""
CHANGED = """
(() => {{const change = {};
  window.sent ??= snapshot;
  snapshot = s => {{
    const models = s.models.map((one, i) => ({{...one, ...change.models?.[i]}}));
    const engines = s.engines.map(one => ({{...one, condition: models[0].condition}}));
    const queue = {{...s.queue, ...change.queue}}, engine = {{...s.engine, ...change.engine}};
    sent({{...s, engine, queue, models, engines}})}}}})()"""
STATE_IS = 'document.querySelector("#state").textContent === "{}"'
TWO_MODELS = """
[[model]]
name = "tiny"
model = "embedded"

[[model]]
name = "titles"
model = "embedded"
"""
OTHER_HOSTS = """
performance.getEntriesByType("resource").map(one => one.name)
  .filter(url => !url.startsWith(location.origin))"""


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(*SLOW, "--tenant-header", "x-tenant") as found:
        yield found


def open_by_keyboard(page: Tab, button: str, phase: str) -> None:
    """Open a request's time line, and close it again."""

    def opens() -> bool:
        # A slot may have become free since.
        page.ask(f"document.querySelector('{button}')?.focus()")
        page.press("Enter", "\r")
        return bool(page.ask('document.querySelector("#story").open'))

    until(opens, 20, f"{button} opens")
    page.until(f"document.querySelector('#story-body').textContent.includes('{phase}')")
    assert page.ask('document.querySelectorAll("#story-body .bar i").length') > 0
    assert page.ask(OVERFLOW) == []
    assert page.ask("document.activeElement.id") == "story-close"
    page.press("Enter", "\r")
    page.until('!document.querySelector("#story").open')
    assert page.ask("document.activeElement.matches('.open, .lane')"), "the next key goes on from there"


def opened_late(page: Tab, url: str, width: int) -> None:
    """Who opens the page now sees what was before, with its first snapshot."""
    page.until("past.time.length > 3")
    before = page.ask("past.time.length")
    page.open(url, width)
    page.until("past.time && past.time.length > 0")
    assert page.ask("past.time.length") >= before


def fits_the_screen(page: Tab) -> None:
    """And clients' words are no markup."""
    assert page.ask(OVERFLOW) == []
    assert page.ask("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.ask('document.querySelectorAll("img").length') == 0


def screenshot(page: Tab, name: str) -> None:
    if SCREENSHOTS:
        page.screenshot(Path(SCREENSHOTS) / name)


@contextmanager
def load(served: Served, agents: int = 14) -> Iterator[None]:
    """Agents that begin alike and go on, until the block is left."""

    over = threading.Event()

    def agent(number: int) -> None:
        text = "You are an agent. " * 12 + f"Number {number}. " * 4
        while not over.is_set():
            text += " And more."
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": 30 + number}
            tenant = EVIL if number == 0 else ("acme", "globex")[number % 2]
            headers = {"content-type": "application/json", "x-tenant": tenant, "x-session-id": f"s{number}"}
            url = served.url + "/v1/chat/completions"
            with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=60) as answer:
                answer.read()

    with ThreadPoolExecutor(agents) as threads:
        for number in range(agents):
            threads.submit(agent, number)
        try:
            yield
        finally:
            over.set()


@pytest.mark.parametrize(
    ("width", "scheme"), [pytest.param(1280, "light", marks=pytest.mark.long), (390, "dark")]
)
def test_the_page_shows_a_busy_server(served: Served, width: int, scheme: str, tmp_path: Path) -> None:
    """Lanes, queue, figures, requests and a chat by keyboard alone; clients' words are no markup."""
    with load(served), tab(tmp_path / "profile") as page:
        page.open(served.url, width, scheme=scheme)
        page.until(STATE_IS.format("ready"))
        page.until('document.querySelectorAll("#lanes .lane").length >= 6')
        page.until('document.querySelectorAll("#recent tr").length > 3')
        page.until('document.querySelectorAll("#tenants td").length > 5')
        page.until('Number(document.querySelector("#rate").textContent) > 0')
        page.until('/ m?s . /.test(document.querySelector("#ttft").textContent)')
        page.until('document.querySelectorAll("#shared_prefixes tr").length > 0')
        page.until(CHARTS_DRAWN)
        page.ask('document.querySelector("#texts").click()')
        page.until(NAMED_PREFIX)
        open_by_keyboard(page, "#recent .open", "decode")
        open_by_keyboard(page, "#lanes .lane", "prefill")
        page.ask('document.querySelector("#prompt").focus()')
        page.press("Tab")
        page.press("Tab")
        assert page.ask("document.activeElement.id") == "send"
        page.press("Enter", "\r")
        page.until('document.querySelector("#life2").textContent.includes("first token")')
        screenshot(page, f"live-{width}.png")
        page.until('!document.querySelector("#send").disabled')
        life = page.ask('document.querySelector("#life2").textContent')
        assert "64 tokens" in life
        assert "cached" in life
        assert page.ask('document.querySelector("#answer").textContent.length') > 0
        fits_the_screen(page)
        cut = '[...document.querySelectorAll(".big")].filter(one => one.scrollWidth > one.clientWidth).length'
        assert page.ask(cut) == 0
        assert page.ask(WIDE_TABLES) == []
        assert page.ask(OUT_OF_STEP) == []
        headline, computed, cached = page.ask(PROMPTS)
        assert abs(headline - computed - cached) <= 1, "all three are of the same ten seconds"
        assert page.ask(OTHER_HOSTS) == []
        opened_late(page, served.url, width)
        assert page.complaints == []


@pytest.mark.parametrize("width", sampled([1280, 390], [390]))
def test_several_engines_have_a_line_each(served: Served, width: int, tmp_path: Path) -> None:
    """One engine has none: the page's figures are its own. A line says what its engine died of."""
    with load(served, 3), tab(tmp_path / "profile") as page:
        page.open(served.url, width)
        page.until(STATE_IS.format("ready"))
        assert page.ask('document.querySelector("#pool").hidden')
        page.ask(ANOTHER_ENGINE)
        page.until('!document.querySelector("#pool").hidden')
        page.until(STATE_IS.format("1 of 2 engines ready"))
        assert page.ask('document.querySelector("#state").className') == "chip bad"
        rows = '[...document.querySelectorAll("#engines tr")].map(row => row.children[{}].textContent)'
        assert page.ask(rows.format(0)) == ["0", "1"]
        assert page.ask(rows.format(1)) == ["ready", "restarting"]
        page.until(rows.format(2) + '.every(text => text.endsWith(" of 6"))')
        assert page.ask(rows.format(6))[0] == ""
        assert page.ask(rows.format(6))[1].endswith("killed (2 restarts)")
        fits_the_screen(page)
        assert page.complaints == []
        screenshot(page, f"live-engines-{width}.png")


def test_several_models_have_a_switch(tmp_path: Path) -> None:
    """The page shows the one that is chosen, also after it is opened again, and a line for each."""
    file = tmp_path / "models.toml"
    file.write_text(TWO_MODELS)
    with serving(*SLOW, "--models", str(file), trained=True) as served, tab(tmp_path / "profile") as page:
        page.open(served.url, 390)
        page.until(STATE_IS.format("ready"))
        rows = '[...document.querySelectorAll("#allmodels tr")].map(row => row.children[{}].textContent)'
        assert page.ask(rows.format(0)) == ["tiny", "titles"]
        assert page.ask(rows.format(1)) == ["ready", "unloaded"]
        assert page.ask('document.querySelector("#models").value') == "tiny"
        for number, name in enumerate(("tiny", "titles")):
            page.ask(CHOOSE.format(number))
            page.until('document.querySelectorAll("#recent tr").length === 0')
            page.ask('document.querySelector("#send").click()')
            page.until('!document.querySelector("#send").disabled')
            page.until('document.querySelectorAll("#recent tr").length === 1')
            page.until(STATE_IS.format("ready"))
            assert served.metric("penstock_requests_total", f'model="{name}"') == 1
        page.open(served.url, 390)
        page.until(STATE_IS.format("ready"))
        assert page.ask('document.querySelector("#models").selectedIndex') == 1
        fits_the_screen(page)
        page.ask('sessionStorage.setItem("penstock-model", "gone")')
        page.open(served.url, 1280)
        page.until('document.querySelector("#models").value === "tiny"')
        fits_the_screen(page)
        assert [one for one in page.complaints if "404" not in one] == []
        screenshot(page, "live-models.png")


def test_the_badge_says_what_is_served(served: Served, tmp_path: Path) -> None:
    """A light is green only where a new request is admitted now; beside the others stands why."""
    with tab(tmp_path / "profile") as page:
        page.open(served.url, 1280)
        for change, (text, colour, reason) in BADGES.items():
            page.ask(CHANGED.format(change))
            page.until(STATE_IS.format(text))
            page.until(f'document.querySelector("#why").textContent === {json.dumps(reason)}')
            assert page.ask('document.querySelector("#state").className') == f"chip {colour}", change
        # The server's samples, a second each, have none of these yet.
        page.ask(CHANGED.format("{queue: {requests: 7, oldest_seconds: 3}}"))
        page.until('document.querySelector("#waiting").textContent === "7"')
        assert page.ask(OUT_OF_STEP) == []


def test_the_page_asks_for_an_operators_key(tmp_path: Path) -> None:
    """Without one it shows nothing of the server; a tenant's is not enough."""
    keys = "acme:secret-one,ops:secret-two admin"
    with serving(*SLOW, "--api-key", keys) as served, tab(tmp_path / "profile") as page:
        page.open(served.url, 1280)
        page.until(STATE_IS.format("needs a key"))
        page.ask(GIVE_KEY.format("secret-one"))
        page.until(STATE_IS.format("needs an operator's key"))
        page.ask(GIVE_KEY.format("secret-two"))
        page.until(STATE_IS.format("ready"))
        page.until('document.querySelector("#memory2").textContent.length > 0')
