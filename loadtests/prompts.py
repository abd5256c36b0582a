"""Prompts: text of a given length in tokens, the same for the same key.

The words are ordinary ones, each of which is one token with its space in the usual vocabularies, so that the
ratio of tokens to words is stable and needs one measurement. Every text is drawn from (salt, key): two layers
with different keys, and one layer in two runs with different salts, differ within the first words.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Final

from loadtests.facts import Fact, drawn

_TEXT: Final = """
def return function value error file line read write open path test class import server request token
cache build module config result name type list string number data time code user state event index count
size key map set get call loop while break continue true false none table column row field record query
search sort filter group join select insert update delete create remove change check start stop run wait
send reply message text word page title section part block step level tree node graph issue report log
trace debug print show display view model queue task work thread process lock memory disk network client
host port link address domain local remote public private shared global common main base small large long
short high low first last next previous before after old new closed full empty left right top bottom front
back inside window east child friend family letter make take give find keep hold move turn follow lead
tell look know want need help fall pass cover close begin end over under between through across along
around because however although where when until since during without within against about again always
never often sometimes together three four second third week month year simple clear strong slow deep round
square white clean safe free ready method object array buffer stream input output source target version
package library service system program command option default setting format parse encode decode load copy
match replace pattern rule limit range total rate order account device frame image color
"""
WORDS: Final = tuple(_TEXT.split())


class Prompts:
    """Generates the texts of one run."""

    def __init__(self, salt: str, tokens_per_word: float) -> None:
        assert tokens_per_word > 0
        self._salt = salt
        self._tokens_per_word = tokens_per_word
        # Every session of a population uses the shared layers, which may be long.
        self.layer = lru_cache(maxsize=256)(self.text)

    def text(self, tokens: float, *key: object) -> str:
        """Return about `tokens` tokens, at least one word. A shorter text of the same key is a prefix of a
        longer one. `layer` is the same, cached."""
        count = max(1, round(tokens / self._tokens_per_word))
        rng = random.Random("/".join(map(str, (self._salt, *key))))
        return " ".join(rng.choices(WORDS, k=count))

    def facts(self, kind: str, first: int, count: int, *key: object) -> tuple[Fact, ...]:
        """Return `count` facts about things of this kind, numbered from `first` on, for the text of this
        key."""
        return drawn(kind, first, count, self._salt, *key)
