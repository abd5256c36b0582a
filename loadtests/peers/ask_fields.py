"""Test which request fields a server honours: `python -m loadtests.peers.ask_fields URL [MODEL] [EOS_ID]`.

It sends each optional field alone, with a value that must change (or must not change) the streamed answer,
and so finds fields that are accepted and ignored. It prints one line a field and, at the end, the `knows=`
for `--target`. It relies on the 13M bench model, with which every server answers alike at temperature 0.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from api.cli.event_lines import EventLines

_TOKENS = 96
_HOT: dict[str, Any] = {"temperature": 1.5}
_PROMPTS = (
    "the sluice gate opens and the water runs down",
    "the sluice gate opens and the water runs down to the mill",
    "who oiled the wheel",
    "nobody waits for the miller, nobody at all",
    "seven stones, one stream",
)
"""Several prompts for the penalties, which only change an answer that repeats itself."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One streamed answer."""

    text: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    logprobs: tuple[Any, ...] = ()
    refusal: str = ""


class Asker:
    def __init__(self, url: str, model: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=120.0, trust_env=False)
        self._model = model
        self.plain = self.say()

    def say(self, prompt: str = _PROMPTS[0], /, **fields: Any) -> Reply:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": _TOKENS,
            "temperature": 0,
            "stream": True,
            **fields,
        }
        with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                text = response.read().decode("utf-8", "replace")
                return Reply(refusal=f"{response.status_code} {text[:160]}")
            events = EventLines()
            payloads = [data for raw in response.iter_bytes() for data in events.data(raw)]
        chunks = [msgspec.json.decode(data) for data in payloads if data != b"[DONE]"]
        choices = [choice for chunk in chunks for choice in chunk.get("choices") or ()]
        reasons = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
        usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
        return Reply(
            text="".join((choice.get("delta") or {}).get("content") or "" for choice in choices),
            finish_reason=reasons[-1] if reasons else None,
            usage=usages[-1] if usages else None,
            logprobs=tuple(choice["logprobs"] for choice in choices if choice.get("logprobs")),
        )

    def changes(self, **fields: Any) -> bool | str:
        for prompt in _PROMPTS:
            # After a request without the field: one server keeps the previous request's value.
            plain, reply = self.say(prompt), self.say(prompt, **fields)
            if reply.refusal or reply.text != plain.text:
                return reply.refusal or True
        return False

    def logit_bias(self) -> bool | str:
        """Return whether one token can be forced for the whole answer: some servers bias the first token
        alone."""
        reply = self.say(logit_bias={"500": 100})
        return reply.refusal or len(set(reply.text.split())) == 1

    def greedy(self, **fields: Any) -> bool | str:
        """Return whether the field leaves only the best token at any temperature."""
        reply = self.say(**_HOT, **fields)
        return reply.refusal or reply.text == self.plain.text

    def seed(self) -> bool | str:
        first, again, other = (self.say(**_HOT, seed=seed) for seed in (1, 1, 2))
        return first.refusal or (first.text == again.text != other.text)

    def stop(self) -> bool | str:
        """Return whether a stop string in the middle of the text, across token boundaries, ends the
        answer."""
        middle = len(self.plain.text) // 2
        reply = self.say(stop=[self.plain.text[middle : middle + 8]])
        return reply.refusal or (reply.finish_reason == "stop" and len(reply.text) <= middle + 8)

    def ignore_eos(self, eos: int) -> bool | str:
        """Return whether an answer that is biased towards EOS goes on when it is ignored."""
        biased: dict[str, Any] = {"logit_bias": {str(eos): 100}}
        ends = self.say(**biased)
        if ends.refusal or ends.finish_reason != "stop":
            return "unknown without logit_bias"
        return self.say(**biased, ignore_eos=True).finish_reason == "length"

    def logprobs(self, **fields: Any) -> bool | str:
        reply = self.say(logprobs=True, **fields)
        return reply.refusal or bool(reply.logprobs)

    def usage(self) -> bool | str:
        reply = self.say(stream_options={"include_usage": True})
        return reply.refusal or reply.usage is not None


def main() -> None:
    url, *others = sys.argv[1:]
    asker = Asker(url, others[0] if others else httpx.get(f"{url}/v1/models").json()["data"][0]["id"])
    if asker.plain.refusal:
        raise SystemExit(asker.plain.refusal)
    found = {
        "stream_options": asker.usage(),
        "temperature": asker.changes(**_HOT),
        "top_p": asker.greedy(top_p=1e-6),
        "top_k": asker.greedy(top_k=1),
        "min_p": asker.greedy(min_p=1.0),
        "seed": asker.seed(),
        "stop": asker.stop(),
        "logit_bias": asker.logit_bias(),
        "logprobs": asker.logprobs(),
        "top_logprobs": asker.logprobs(top_logprobs=3),
        # Below neutral: they make a model repeat itself, which changes any answer.
        "presence_penalty": asker.changes(presence_penalty=-2.0),
        "frequency_penalty": asker.changes(frequency_penalty=-2.0),
        "repetition_penalty": asker.changes(repetition_penalty=0.9),
        "ignore_eos": asker.ignore_eos(int(others[1]) if len(others) > 1 else 8185),
    }
    for name, verdict in found.items():
        print(f"{name:20} {verdict if isinstance(verdict, str) else 'honoured' if verdict else 'IGNORED'}")
    asker.say(stream_options={"include_usage": True})
    print("usage of a repeat:  ", asker.say(stream_options={"include_usage": True}).usage)
    print("knows=" + "+".join(name for name, verdict in found.items() if verdict is True))


if __name__ == "__main__":
    main()
