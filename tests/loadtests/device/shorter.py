"""`python -m loadtests.device` with short chunks, prefixes and answers; rows join, share, leave as usual."""

from __future__ import annotations

import sys

from loadtests.device import __main__, branches

ANSWER_TOKENS = 4

if __name__ == "__main__":
    branches._CHUNK_TOKENS, branches._PREFIX_TOKENS, branches._ANSWER_TOKENS = 16, 32, ANSWER_TOKENS
    sys.exit(__main__.main())
