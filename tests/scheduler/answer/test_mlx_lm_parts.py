"""The parts of mlx-lm's notations that we import without mlx-lm, compared with mlx-lm imported."""

from __future__ import annotations

from mlx_lm import tokenizer_utils
from mlx_lm.models import muse_spark

from scheduler.answer.answer_format import MODEL_DEFAULTS
from scheduler.models.random_qwen3 import TOKENIZER_FOLDER
from scheduler.prompt.tokenizer import HubTokenizer


def test_the_embedded_models_notation_is_what_mlx_lm_infers() -> None:
    """Both of the same folder. Catches: an inference that moved or changed its meaning."""
    theirs = tokenizer_utils.load(TOKENIZER_FOLDER)
    ours = HubTokenizer(TOKENIZER_FOLDER).answer_format
    assert ours.tools is not None
    assert ours.reasoning is not None
    assert (ours.tools.start, ours.tools.end) == (theirs.tool_call_start, theirs.tool_call_end)
    assert (ours.reasoning.start, ours.reasoning.end) == (theirs.think_start, theirs.think_end)


def test_what_model_classes_say_of_their_tokenizers_is_what_we_noted() -> None:
    """Catches: a changed or new default of a model class."""
    assert MODEL_DEFAULTS["muse_spark"].items() <= muse_spark.TOKENIZER_DEFAULTS.items()
