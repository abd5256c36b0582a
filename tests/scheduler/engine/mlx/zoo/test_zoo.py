"""The modules of the installed mlx-lm: each can be built, or is listed. `make zoo` judges them."""

from __future__ import annotations

import pytest

from tests.examples import sampled
from tests.scheduler.engine.mlx.zoo.census import (
    ENTRIES,
    NO_MODELS,
    NOT_BUILT,
    build,
    module_of,
    modules,
    names,
)
from tests.scheduler.engine.mlx.zoo.faults import FAULTS
from tests.scheduler.engine.mlx.zoo.weights import in_weights


def test_every_module_of_mlx_lm_is_there_or_listed() -> None:
    listed = NO_MODELS.keys() | NOT_BUILT.keys()
    assert listed <= set(modules()), "a module is gone"
    assert set(modules()) == listed | {module_of(name) for name in names()}


@pytest.mark.parametrize("part", sampled(range(8), [3]))
def test_every_module_of_mlx_lm_is_built(part: int) -> None:
    """A release of mlx-lm with a module whose configuration cannot be made up from its fields fails here:
    it needs an entry, or a reason."""
    unknown = {}
    for name in names()[part::8]:
        try:
            build(name)
        except Exception as error:  # Whatever a module raises that finds no name or no size for a field.
            unknown[name] = f"{type(error).__name__}: {error}"
    assert not unknown, "modules that cannot be built"


def test_entries_and_faults_are_of_modules_that_are_there() -> None:
    assert {module_of(name) for name in ENTRIES} <= set(modules())
    assert FAULTS.keys() <= {*names(), *in_weights()}
