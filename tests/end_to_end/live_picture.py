"""Takes the README's picture of the live page: `python -m tests.end_to_end.live_picture` writes
`api/admin/live.png`.

A real `penstock serve` with the embedded model, sixteen agents of three tenants on eight slots, and the page
in a headless Chromium. Run it again when the page changes. Nothing is drawn by hand; the picture is only
reduced to 64 colours, which keeps it under 200 kB.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from urllib.request import Request, urlopen

from PIL import Image

from tests.end_to_end.agent_threads import agent_threads
from tests.end_to_end.chromium import Tab, tab
from tests.end_to_end.serving import serving

PICTURE = Path(__file__).parents[2] / "api" / "admin" / "live.png"
MAX_PICTURE_BYTES = 200_000
TENANTS = {"acme": "The project is a warehouse.", "globex": "The project is an airport.", "initech": "Hello."}
AGENTS = 16
OPTIONS = ("--max-slots", "8", "--tenant-header", "x-tenant", "--kv-cache-bytes", "64MiB")
"""Fewer slots than agents, and a budget small enough that the memory bar shows what fills it."""
WARM_UP_SECONDS = 25.0
"""Enough for the sparklines to show a history, and for shared prefixes to be cached."""


def system_prompt(tenant: str) -> str:
    """About 700 tokens of facts, the same for all agents of a tenant."""
    facts = random.Random(tenant)
    codes = [
        f"The code of drone {number} is {''.join(facts.choices('ABCDEFGHKLMNPQRSTUVWXYZ23456789', k=4))}."
        for number in range(10, 45)
    ]
    return " ".join([TENANTS[tenant], *codes])


def run_agent(url: str, number: int, over: threading.Event) -> None:
    """One session: a conversation that grows by a question and its answer a turn, then starts again."""
    choice = random.Random(number)
    tenant = list(TENANTS)[number % len(TENANTS)]
    headers = {
        "content-type": "application/json",
        "x-tenant": tenant,
        "x-session-id": f"agent-{number + 1}",
    }
    messages: list[dict[str, str]] = []
    while not over.is_set():
        if len(messages) > 6:
            messages = []
        if not messages:
            messages = [{"role": "system", "content": system_prompt(tenant)}]
        question = f"What is the code of drone {choice.randint(10, 44)}?"
        messages.append({"role": "user", "content": question})
        # The embedded model answers in ten tokens; an agent's answers are longer.
        body = {"messages": messages, "max_tokens": choice.randint(30, 120), "ignore_eos": True}
        request = Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
        with urlopen(request, timeout=120) as response:
            answer = json.loads(response.read())["choices"][0]["message"]["content"] or ""
        messages.append({"role": "assistant", "content": answer.split(".")[0] + "."})


def show_busy_page(page: Tab, url: str) -> None:
    page.open(url, 1280)
    page.until('document.querySelector("#state").textContent === "ready"')
    time.sleep(WARM_UP_SECONDS)
    page.until('document.querySelectorAll("#shared_prefixes tr").length > 2')
    page.ask('document.querySelector("#prompt").value = "What is Penstock?"')
    page.ask('document.querySelector("#send").click()')
    page.until('document.querySelector("#life2").textContent.includes("stop ")', 60)
    page.until('document.querySelectorAll("#tenants td").length > 5')


def take(path: Path) -> int:
    """Writes the picture and returns its size in bytes. Raises ValueError where it is too large."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "page.png"
        with (
            serving(*OPTIONS, trained=True) as served,
            agent_threads(partial(run_agent, served.url), AGENTS),
            tab(Path(folder) / "profile") as page,
        ):
            show_busy_page(page, served.url)
            page.screenshot(raw)
        with Image.open(raw) as image:
            image.convert("RGB").quantize(64).save(path, optimize=True)
    size = path.stat().st_size
    if size > MAX_PICTURE_BYTES:
        raise ValueError(f"{path} has {size} bytes, more than {MAX_PICTURE_BYTES}")
    return size


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    print(f"{where}: {take(where)} bytes")
