"""The limit of open files, and an accept that fails for lack of descriptors."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.http.limits import RESERVED_DESCRIPTORS, Limits, fit_descriptors

RAISED = """
import resource, sys
from api.http.limits import raise_descriptor_limit
soft, hard, wanted = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(raise_descriptor_limit(wanted), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "got"),
    [(128, 512, 300, 300), (128, 512, 512, 512), (128, 512, 1000, 512), (256, 512, 200, 256)],
)
def test_the_soft_limit_is_raised_as_far_as_it_may(soft: int, hard: int, wanted: int, got: int) -> None:
    command = [sys.executable, "-c", RAISED, str(soft), str(hard), str(wanted)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert said == [str(got), str(got), str(hard)]


@given(
    limits=st.builds(Limits, connections=st.integers(1, 9000), refusals=st.integers(1, 9000)),
    descriptors=st.integers(4, 20000),
)
def test_connections_and_refusals_fit_into_descriptors(limits: Limits, descriptors: int) -> None:
    """The server's own reserve stays free, and nothing else. Refusals become fewer before connections do,
    down to an eighth of the room."""
    fitted = fit_descriptors(limits, descriptors)
    room = descriptors - min(RESERVED_DESCRIPTORS, descriptors // 2)
    assert 1 <= fitted.connections <= limits.connections
    assert 1 <= fitted.refusals <= limits.refusals
    assert fitted.connections + fitted.refusals == min(room, limits.connections + limits.refusals)
    if fitted.connections < limits.connections:
        assert fitted.refusals <= max(1, room // 8)
