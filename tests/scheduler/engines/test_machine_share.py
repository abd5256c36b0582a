"""What each engine gets of a machine."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from scheduler.processes.machine_share import gpus_of, share_of, sharers_of


@given(st.integers(2, 16), st.integers(1, 64))
def test_engines_have_together_as_many_threads_as_there_are_cores(engines: int, cores: int) -> None:
    """Where there are enough; otherwise one BLAS thread each."""
    threads = {share_of(number, engines, cores, ())["OPENBLAS_NUM_THREADS"] for number in range(engines)}
    assert threads == {str(max(1, cores // engines))}


def test_each_engine_has_a_gpu_and_a_further_one_shares() -> None:
    """In the order of the operator's list."""
    cards = [share_of(number, 3, 8, ("3", "1"))["CUDA_VISIBLE_DEVICES"] for number in range(3)]
    assert cards == ["3", "1", "3"]
    assert [sharers_of(engines, ("3", "1")) for engines in (1, 2, 3, 4)] == [1, 1, 2, 2]
    assert sharers_of(3, ()) == 3


def test_gpus_are_those_that_the_operator_lets_it_use_or_all(tmp_path: Path) -> None:
    """None without NVIDIA's driver."""
    for card in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / card).mkdir()
    assert gpus_of({}, tmp_path) == ("0", "1")
    assert gpus_of({"CUDA_VISIBLE_DEVICES": "1, 0"}, tmp_path) == ("1", "0")
    assert gpus_of({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == ()
    assert gpus_of({}, tmp_path / "absent") == ()
