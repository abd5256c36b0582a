"""What a `Preparation` is made of: small, and the same in every process that makes one.

A file of its own because the server makes one, and so does each of its preparation processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.config import ThinkingConfig
from scheduler.grammar.answer_grammar import HoldCalls
from scheduler.prompt.model_folder import ModelFolder
from scheduler.prompt.preparation import Preparation
from scheduler.prompt.tokenizer import HubTokenizer


@dataclass(frozen=True, slots=True)
class PreparationRecipe:
    """A model's folder, and the options that apply to its prompts and answers."""

    folder: ModelFolder
    tool_parser: str = "auto"
    reasoning_parser: str = "auto"
    thinking: ThinkingConfig = field(default_factory=ThinkingConfig)
    hold_calls: HoldCalls = "strict"

    def make(self) -> Preparation:
        """Load the tokenizer, which takes a second. Raise StartupError if there is none that works."""
        tokenizer = HubTokenizer(
            self.folder.path,
            model_type=self.folder.model_type,
            tool_parser=self.tool_parser,
            reasoning_parser=self.reasoning_parser,
        )
        return Preparation(tokenizer, self.folder, self.thinking, self.hold_calls)
