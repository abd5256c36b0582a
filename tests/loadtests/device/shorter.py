"""`python -m loadtests.device` with short chunks, prefixes and answers; rows join, share, leave as usual. The
zoo is left out, whose own tests run it."""

from __future__ import annotations

from loadtests.device import __main__, branches

ANSWER_TOKENS = 4
PROMPTS = slice(None, None, 2)
"""Four of seven: two behind the prefix, one shorter than a chunk and one longer."""


def shorten() -> None:
    prompts = branches._prompts
    __main__.ZOO_QUICK = ()
    branches._CHUNK_TOKENS, branches._PREFIX_TOKENS, branches._ANSWER_TOKENS = 16, 32, ANSWER_TOKENS
    branches._prompts = lambda vocabulary: prompts(vocabulary)[PROMPTS]


if __name__ == "__main__":
    shorten()
    __main__.main()
