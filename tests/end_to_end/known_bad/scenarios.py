"""Requests that once harmed this server, as data: each row is a defect that was reproduced.

D1 to D21 are the names of a review. A row has the requests, their allowed outcomes, and the defect.
`test_known_bad.py` sends them and checks what must hold for every row: the engine lives, the event loop never
stalls for half a second, a neighbour gets its own tokens at about its own pace.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

from tests.end_to_end.known_bad.asking import Ask, Outcome, Reply

ANSWERED, REFUSED, FAILED, BUSY = Outcome.ANSWERED, Outcome.REFUSED, Outcome.FAILED, Outcome.BUSY
CHAT, TEXT, MESSAGES, RESPONSES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/responses",
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """`expected`: the allowed outcomes of each request. `hold`: whether a reply is right, beyond its outcome.
    `head_start`: how many events of each answer come before the second neighbour. `hang_up`: disconnect when
    the neighbours are done, without waiting for the answers. `pace`: the bound on a neighbour's time, in
    multiples of its time alone."""

    name: str
    why: str
    asks: Callable[[], list[Ask]]
    expected: frozenset[Outcome]
    hold: Callable[[Reply], bool] = field(default=lambda reply: True)
    head_start: int = 0
    hang_up: bool = False
    pace: float = 2.0


def _row(name: str, why: str, asks: Callable[[], list[Ask]], *expected: Outcome, **more: Any) -> Scenario:
    return Scenario(name, why, asks, frozenset(expected), **more)


def _chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 16, **fields}


# --- Sampling parameters


def _four(**fields: Any) -> Callable[[], list[Ask]]:
    """Four in turn closed the service: each engine death counts, and each request made two."""
    # The embedded model's own default is greedy, and most of these are about what is drawn.
    body = {"prompt": "The code of drone", "max_tokens": 4, "temperature": 1, **fields}
    return lambda: [Ask(TEXT, body) for _ in range(4)]


_ZERO_IN_FLOAT32 = "a penalty that is 0 in float32 makes NaN of -inf, and the sampler raised in the step"
_STOPS: dict[str, Any] = {"min_tokens": 3, "stop_token_ids": [5, 6, 7], "prompt": [5, 6, 7, 8]}
_DIGITS: dict[str, Any] = {"structured_outputs": {"regex": "[0-9]{3}"}}

SAMPLING = [
    _row(f"D1 repetition_penalty {penalty}, {name}", _ZERO_IN_FLOAT32, _four(**fields), REFUSED, FAILED)
    for penalty in (1e-46, 5e-324)
    for name, fields in {
        "grammar": {**_DIGITS, "repetition_penalty": penalty, "top_p": 0.9},
        "held stops": {**_STOPS, "repetition_penalty": penalty, "top_p": 0.9},
    }.items()
] + [
    _row(
        f"D1 {name}",
        "an extreme number that is accepted is no reason for an engine to die",
        _four(**fields),
        *(ANSWERED, REFUSED, FAILED),
    )
    for name, fields in {
        "least penalty, grammar": {**_DIGITS, "repetition_penalty": 0.01, "top_p": 1e-300},
        "largest penalty, held stops": {**_STOPS, "repetition_penalty": 10, "min_p": 1.0, "temperature": 2},
        "least temperature": {"temperature": 5e-324, "top_p": 5e-324, "seed": 2**64 - 1},
        "temperature 1e-40": {"temperature": 1e-40, "min_p": 5e-324, "top_k": 2**31 - 1},
        "everything biased away": {**_DIGITS, "logit_bias": {str(i): -100 for i in range(1000)}},
        "biased, penalised, held": {
            **_STOPS,
            "logit_bias": {"5": 100, "6": -100, "7": 100},
            "frequency_penalty": -2,
            "presence_penalty": -2,
            "repetition_penalty": 1e-30,
            "temperature": 1e-30,
        },
    }.items()
]

# --- Tools whose schemas cost more than their size


def _weather(schema: dict[str, Any], **fields: Any) -> Callable[[], list[Ask]]:
    """The embedded model calls it, with the city."""
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": schema}}
    body = _chat("What is the weather in Oslo?", tools=[tool], temperature=0, **fields) | {"max_tokens": 60}
    return lambda: [Ask(CHAT, body)]


def _ladder(kind: str, depth: int, last: dict[str, Any]) -> dict[str, Any]:
    """A city that takes 2 to the power of `depth` visits to validate."""
    steps = {f"l{i}": {kind: [{"$ref": f"#/$defs/l{i + 1}"}] * 2} for i in range(depth)}
    return {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/l0"}},
        "required": ["city"],
        "$defs": {**steps, f"l{depth}": last},
    }


def _calls_oslo(reply: Reply) -> bool:
    if reply.outcome is not ANSWERED:
        return True
    (call,) = reply.body["choices"][0]["message"]["tool_calls"]
    return bool(json.loads(call["function"]["arguments"]) == {"city": "Oslo"})


_EXPONENTIAL = "a call's arguments were validated on the event loop without a bound of steps"

SCHEMAS = [
    _row(f"D2 {name}", _EXPONENTIAL, _weather(schema), ANSWERED, REFUSED, hold=_calls_oslo)
    for name, schema in {
        "allOf ladder": _ladder("allOf", 24, {"type": "string"}),
        "anyOf ladder": _ladder("anyOf", 24, {"type": "integer"}),
        "oneOf ladder": _ladder("oneOf", 24, {"type": "string"}),
        "not ladder": _ladder("allOf", 24, {"not": {"type": "integer"}}),
        "a reference to itself": {
            "$ref": "#",
            "type": "object",
            "properties": {"city": {"$ref": "#/properties/city"}},
        },
    }.items()
]

# --- Bodies that cost more than their bytes


def _filled(path: str, before: str, one: str, after: str, megabytes: float) -> Callable[[], list[Ask]]:
    """A body of some megabytes whose list has the maximum number of entries."""
    count = int(megabytes * 1e6) // (len(one) + 1)
    return lambda: [Ask(path, (before + ",".join([one] * count) + after).encode())]


_EVERY_ERROR = "validation ran on the event loop, and made an error object for each wrong entry"
_MODEL = '"model": "penstock-embedded", "max_tokens": 4, '
_SAID = '{"role":"user","content":"a"}'

_LISTS = {
    "messages": (CHAT, '{"messages": [', "1", "]}"),
    "messages, Anthropic's": (MESSAGES, "{" + _MODEL + '"messages": [', "1", "]}"),
    "blocks, Anthropic's": (
        MESSAGES, "{" + _MODEL + '"messages": [{"role": "user", "content": [', "1", "]}]}"
    ),
    "items": (RESPONSES, '{"input": [', "1", "]}"),
    "parts": (RESPONSES, '{"input": [{"role": "user", "content": [', "1", "]}]}"),
    "tools": (CHAT, '{"messages": [' + _SAID + '], "tools": [', "1", "]}"),
    "stop tokens": (TEXT, '{"prompt": "x", "stop_token_ids": [', '""', "]}"),
    "tokens": ("/detokenize", '{"tokens": [', '"x"', "]}"),
    "tools of /tokenize": ("/tokenize", '{"messages": [' + _SAID + '], "tools": [', "1", "]}"),
}  # fmt: skip
_CALLS = (CHAT, '{"messages": [{"role": "assistant", "tool_calls": [', "1", "]}]}")
_HALF_A_MILLION = {
    "": (CHAT, '{"messages": [', _SAID, "]}"),
    ", Anthropic's": (MESSAGES, "{" + _MODEL + '"messages": [', _SAID, "]}"),
}

BODIES = [
    *(_row(f"D3 wrong {name}", _EVERY_ERROR, _filled(*body, 2), REFUSED) for name, body in _LISTS.items()),
    # Without what is no call.
    _row("D3 wrong calls", _EVERY_ERROR, _filled(*_CALLS, 2), ANSWERED),
    *(
        _row(
            f"D3 half a million messages{name}",
            "a valid body of 16 MB held the event loop for 13.6 s",
            _filled(*body, 15.9),
            REFUSED,
        )
        for name, body in _HALF_A_MILLION.items()
    ),
    _row(
        "D25 62,000 messages",
        "a valid body held the interpreter for 0.3 s in pieces, the longest a collection of its messages",
        lambda: [
            Ask(CHAT, {"messages": [{"role": "user", "content": f"a{i}"} for i in range(62_000)]})
            for _ in range(2)
        ],
        REFUSED,
        pace=4.0,
    ),
    _row(
        "D3 keys without end",
        "each unknown field is noted: the first 16 are named, in bounded time",
        lambda: [Ask(CHAT, {**_chat(), **{f"x{i}": 1 for i in range(200_000)}})],
        ANSWERED,
    ),
    _row(
        "D3 biases without end",
        _EVERY_ERROR,
        lambda: [Ask(CHAT, _chat(logit_bias={f"x{i}": "x" for i in range(100_000)}))],
        REFUSED,
    ),
    _row(
        "n times echo",
        "128 answers each repeat a prompt of 6 KB into one JSON, made on the event loop",
        lambda: [
            Ask(TEXT, {"prompt": "The mill wheel turns. " * 280, "n": 128, "echo": True, "max_tokens": 1})
        ],
        *(ANSWERED, REFUSED),
        hang_up=True,
        pace=8.0,
    ),
]

# --- Answers and prompts that are larger than their requests

_HALF: dict[str, str] = {"content-length": str(15 << 20)}

SIZES = [
    _row(
        "D22 a whole answer with log-probabilities",
        "every choice's were held as objects, and encoded on the event loop: 10 s for 48 MB",
        lambda: [
            Ask(
                CHAT,
                _chat(n=32, logprobs=True, top_logprobs=20, ignore_eos=True, temperature=1, seed=1)
                | {"max_tokens": 60},
            )
        ],
        ANSWERED,
        pace=8.0,
    ),
    _row(
        "D22 a whole answer that nobody can hold",
        "its size was known at admission, and not asked for",
        lambda: [
            Ask(CHAT, _chat(n=128, logprobs=True, top_logprobs=20) | {"max_tokens": 1500}),
            Ask(TEXT, {"prompt": ["x"] * 40, "n": 128, "logprobs": 5, "max_tokens": 1000}),
        ],
        REFUSED,
    ),
    _row(
        "D22 log-probabilities of prompts for each choice",
        "they are repeated for each choice, and were made at once",
        lambda: [Ask(TEXT, {"prompt": [7] * 1000, "n": 16, "logprobs": 5, "echo": True, "max_tokens": 1})],
        *(ANSWERED, REFUSED),
        pace=8.0,
    ),
    _row(
        "D23 bodies that never end",
        "sixty took a gigabyte, which was not given back",
        lambda: [Ask(CHAT, b'{"messages": "' + b"x" * (1 << 20), _HALF) for _ in range(40)],
        *(REFUSED, BUSY),
        hang_up=True,
        pace=4.0,
    ),
    _row(
        "D24 texts to embed for a model that writes",
        "requests were made of all of them before admission",
        lambda: [Ask("/v1/embeddings", {"input": ["text " * 400] * 2048})],
        REFUSED,
    ),
]

# --- Whose page asks


def _from(headers: dict[str, str]) -> Callable[[], list[Ask]]:
    """Everything that a page could try to read, by both methods."""
    said = {"model": "penstock-embedded", **_chat(), "max_tokens": 4}
    return lambda: [
        Ask("/v1/cache?text_tokens=200", headers=headers),
        Ask("/v1/scheduler", headers=headers),
        Ask("/v1/models", headers=headers),
        Ask(CHAT, said, headers),
        Ask(MESSAGES, said, headers),
    ]


def _is_forbidden(reply: Reply) -> bool:
    return reply.status == 403


ORIGINS = [
    _row(
        f"D4 {name}",
        "a page whose name was rebound to 127.0.0.1 read other agents' prompts",
        _from(headers),
        REFUSED,
        hold=_is_forbidden,
    )
    for name, headers in {
        "a foreign Host": {"host": "evil.example:8000"},
        "a foreign Origin": {"origin": "http://evil.example"},
        "a sandboxed page": {"origin": "null"},
        "a foreign Host that looks like ours": {"host": "127.0.0.1.evil.example"},
    }.items()
]

# --- What one client's work costs the others

_AMBIGUOUS = {"grammar": "start: s\ns: s s s | s s | /./\n"}


_numbers = count()


def _schemas() -> Iterator[Ask]:
    """Schemas of 115 KB, all different and never sent before, as the agents of one client would send them."""
    for number in islice(_numbers, 24):
        properties = {
            f"field_{number}_{i}": {"type": "string", "maxLength": 5 + i % 40, "description": "x" * 40}
            for i in range(1100)
        }
        schema = {"type": "object", "properties": properties}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        yield Ask(CHAT, _chat(response_format=form, max_tokens=1))


COSTS = [
    _row(
        "D5 a grammar whose masks grow with the cube",
        "masks are made on the engine's thread, and everybody waits for the slowest",
        lambda: [
            Ask(
                CHAT,
                _chat(structured_outputs=_AMBIGUOUS, stream=True, min_tokens=300, temperature=1, seed=1)
                | {"max_tokens": 400},
            )
        ],
        *(FAILED, REFUSED),
        head_start=30,
        pace=4.0,
    ),
    _row(
        "D10 one client's many schemas",
        "one FIFO of as many threads as cores prepared everybody's requests",
        lambda: list(_schemas()),
        *(ANSWERED, REFUSED, BUSY),
        hang_up=True,
        pace=4.0,
    ),
    _row(
        "D17 everybody looks at the scheduler",
        "each look walked the whole prefix cache on the engine's thread",
        lambda: [Ask("/v1/scheduler") for _ in range(40)],
        ANSWERED,
        pace=4.0,
    ),
]

# --- What 32 answers cost that end in one step

_BUDGETS = "what an answer's end or a token may cost was bounded for each answer, not for a step"
_TO_ITSELF = {"allOf": [{"$ref": "#"}, {"$ref": "#"}], "properties": {"a": {"$ref": "#"}}}


def _self_referring() -> list[Ask]:
    """Tools as large as a prompt that two cores compute in some seconds, and calls that nobody can parse."""
    tools = [
        {"type": "function", "function": {"name": f"t{number}", "parameters": _TO_ITSELF}}
        for number in range(40)
    ]
    return [Ask(CHAT, _chat(tools=tools, structured_outputs={"choice": ["<tool_call>x</tool_call>"]}, n=32))]


def _strict_ladder() -> list[Ask]:
    (ask,) = _weather(_ladder("allOf", 25, {"type": "string"}), n=32)()
    assert isinstance(ask.body, dict)
    ask.body["tools"][0]["function"]["strict"] = True
    return [ask]


def _stops(number: int) -> list[str]:
    """Return stop strings of 256 characters, which the answer follows for long."""
    return [("ab" * 128)[: 250 - one] + f"c{one:05}" for one in range(number)]


_FOLLOWS: dict[str, Any] = {"structured_outputs": {"regex": "(ab){60,64}"}, "max_tokens": 64}

STEPS = [
    _row("40 tools, 32 answers", _BUDGETS, _self_referring, *(ANSWERED, REFUSED), pace=8.0),
    _row("a strict ladder, 32 answers", _BUDGETS, _strict_ladder, *(ANSWERED, REFUSED), pace=8.0),
    _row(
        "16 stop strings, 32 answers",
        "each prefix of each stop string was looked for with each token",
        lambda: [Ask(TEXT, {"prompt": "ab", "stop": _stops(16), "n": 32, **_FOLLOWS})],
        ANSWERED,
        pace=8.0,
    ),
    _row(
        "64 stop strings, 32 answers",
        "each prefix of each stop string was looked for with each token",
        lambda: [
            Ask(
                MESSAGES,
                {
                    **_chat("Tell me of the mill."),
                    "model": "penstock-embedded",
                    "stop_sequences": _stops(64),
                    "max_tokens": 64,
                },
            )
            for _ in range(32)
        ],
        *(ANSWERED, BUSY),
        pace=8.0,
    ),
]

# --- What got lost


def _joined_system() -> list[Ask]:
    """The system prompt in one block with an agent's own header, as gateways join them."""
    system = "x-anthropic-billing-header: cc_version=2.1; cch=0f3a;\n" + "Never open the sluice gate. " * 40
    said = [{"role": "user", "content": "hello"}]
    return [
        Ask(f"{MESSAGES}/count_tokens", {"model": "penstock-embedded", "system": system, "messages": said})
    ]


LOST = [
    _row(
        "D18 a system prompt behind a header line",
        "a block that began with a volatile header was dropped whole",
        _joined_system,
        ANSWERED,
        hold=lambda reply: reply.body["input_tokens"] > 100,
    ),
    _row(
        "documents for the template",
        "the body's own field is refused, and by way of chat_template_kwargs it was passed on",
        lambda: [Ask(CHAT, _chat(chat_template_kwargs={"documents": [{"title": "x", "text": "y"}]}))],
        REFUSED,
    ),
]

ALL: list[Scenario] = [*SAMPLING, *SCHEMAS, *BODIES, *SIZES, *ORIGINS, *COSTS, *STEPS, *LOST]
"""For a server with every option at its default, on the embedded model."""
