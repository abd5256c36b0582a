"""What both processes make of an adapter's folder: its fingerprint, and the salt of its prefixes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.shared.adapter_files import AdapterRefused, fingerprint, read_config, salted
from tests.fakes.adapter_folders import adapter_folder

KEYS = ("", "a" * 64, "b" * 64)
salts = st.text(st.sampled_from(["\0", ":", "a", "x"]), max_size=6).flatmap(
    lambda rest: st.sampled_from([rest, f"\0adapter:{'a' * 64}\0{rest}", f"\0\0adapter:{'a' * 64}\0{rest}"])
)


@settings(deadline=None)
@given(st.sampled_from(KEYS), salts, st.sampled_from(KEYS), salts)
def test_no_two_adapters_and_salts_share_prefixes(one: str, salt: str, other: str, other_salt: str) -> None:
    """Whatever a client sends as its salt."""
    assert (salted(one, salt) == salted(other, other_salt)) == ((one, salt) == (other, other_salt))


def test_a_fingerprint_is_of_both_files_and_no_name(tmp_path: Path) -> None:
    first = fingerprint(adapter_folder(tmp_path / "a"))
    assert fingerprint(adapter_folder(tmp_path / "b")) == first
    assert fingerprint(adapter_folder(tmp_path / "b", b"others")) != first
    assert fingerprint(adapter_folder(tmp_path / "b", num_layers=2)) != first


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_dora": True}, "use_dora is True, and only plain factors"),
        ({"lora_parameters": {"rank": 4, "scale": 1.0, "use_rslora": True}}, "use_rslora is True, and only"),
        (
            {"lora_parameters": {"rank": 4, "scale": 1.0, "warp": 9, "bend": 1}},
            "has bend, warp, whose effect",
        ),
    ],
)
def test_factors_that_are_used_otherwise_are_refused_by_name(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """Plain ones would give other answers than the adapter was trained for."""
    with pytest.raises(AdapterRefused, match=words):
        read_config(adapter_folder(tmp_path / "a", **changes))


def test_what_is_for_training_has_no_effect(tmp_path: Path) -> None:
    """mlx-lm writes all arguments of its training into the file."""
    lora = {"rank": 4, "scale": 10.0, "dropout": 0.1, "alpha": 16, "keys": None}
    training: dict[str, Any] = {
        "lora_parameters": lora,
        "optimizer": "adamw",
        "iters": 1000,
        "use_dora": False,
        "seed": 0,
    }
    assert read_config(adapter_folder(tmp_path / "a", **training)).scale == 10.0
