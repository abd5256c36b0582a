"""What each engine gets of a machine."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from scheduler.engines.machine_share import MachineShare, gpus_of, share_of, sharers_of


def test_one_engine_has_the_machine_as_before() -> None:
    """Nothing changes for anybody who does not ask for several."""
    assert share_of(0, 1, range(16), ("0", "1")) == MachineShare()


@given(st.integers(2, 16), st.integers(1, 64))
def test_engines_have_equal_parts_of_the_cores_and_none_in_common(engines: int, cores: int) -> None:
    """Where there are enough; otherwise one BLAS thread each, on any core."""
    shares = [share_of(number, engines, range(cores), ()) for number in range(engines)]
    each = max(1, cores // engines)
    assert {share.environment["OPENBLAS_NUM_THREADS"] for share in shares} == {str(each)}
    if cores < engines:
        assert all(share.cores is None for share in shares)
        return
    pinned = [share.cores or frozenset() for share in shares]
    assert {len(own) for own in pinned} == {each}
    assert len(frozenset().union(*pinned)) == engines * each


def test_each_engine_has_a_gpu_and_a_further_one_shares() -> None:
    """In the order of the operator's list."""
    cards = [
        share_of(number, 2, range(8), ("3", "1")).environment["CUDA_VISIBLE_DEVICES"] for number in range(3)
    ]
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
