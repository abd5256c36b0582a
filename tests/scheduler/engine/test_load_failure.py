"""What the operator reads when a model cannot be loaded."""

from __future__ import annotations

import pytest

from scheduler.engine.budget.limits import MemoryTooSmall
from scheduler.engine.load_failure import in_one_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError(), "the model does not fit into memory (MemoryError): serve a smaller"),
        (
            RuntimeError("[metal::malloc] Attempting to allocate 80 bytes"),
            "the model does not fit into memory (RuntimeError: [metal::malloc]",
        ),
        (ValueError("Model type martian not supported."), "mlx-lm does not know this type of model"),
        (
            RuntimeError("[load_safetensors] The JSON header is 6096 bytes long but the file is only 100"),
            "the weights cannot be read",
        ),
        (
            ValueError("Expected shape (2, 2) but received shape (2, 1) for parameter a"),
            "the weights are not",
        ),
        (
            ValueError("Missing 2 parameters: \na,\nb."),
            "the weights are not those that config.json describes",
        ),
        (TypeError("ModelArgs.__init__() missing 1 required argument"), "config.json lacks something"),
        (ZeroDivisionError("x"), "the model cannot be loaded (ZeroDivisionError: x): --log-level debug"),
    ],
)
def test_each_kind_of_failure_says_what_it_means_and_what_to_do(error: Exception, line: str) -> None:
    said = in_one_line(error)
    assert said.startswith(line)
    assert len(said.rpartition("): ")[2]) > 10


def test_a_refusal_with_its_own_words_is_said_as_it_is() -> None:
    assert in_one_line(MemoryTooSmall("the weights take 9 GB")) == "the weights take 9 GB"


def test_it_is_one_bounded_line_whatever_the_error_says() -> None:
    said = in_one_line(ValueError("a\n" * 10_000))
    assert len(said.splitlines()) == 1
    assert len(said) < 1000
