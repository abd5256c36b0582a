"""What a test asks of the grammar library itself."""

from __future__ import annotations

from scheduler.grammar.answer_grammar import GrammarWriter
from scheduler.grammar.vocabulary import GrammarVocabulary
from scheduler.prompt.preparation import Preparation


def library_of(preparation: Preparation) -> GrammarVocabulary:
    """Return the vocabulary with which `preparation` checks its grammars, in this process."""
    writer = preparation._grammars.write
    assert isinstance(writer, GrammarWriter)
    assert writer.vocabulary is not None
    return writer.vocabulary
