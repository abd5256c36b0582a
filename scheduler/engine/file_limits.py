"""The limits of open files, kept while mlx-lm is imported, in every process that imports it."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def file_limits_kept() -> Iterator[None]:
    """Restore the limits: mlx-lm sets RLIMIT_NOFILE to (2048, 4096) when it is imported, which raises
    ValueError where the hard limit is lower. The engine needs a dozen files, and the server has raised the
    soft limit already."""
    set_limit = resource.setrlimit
    resource.setrlimit = lambda *limits: None
    try:
        yield
    finally:
        resource.setrlimit = set_limit
