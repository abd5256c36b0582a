"""Fixtures and settings for all tests."""

from __future__ import annotations

import gc
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest
import structlog
import trio.testing

from tests.examples import examples, is_long_run
from tests.gate import Gate, drop_passed, is_in_gate

# These assert outside test modules too; without this their failures would show no values.
pytest.register_assert_rewrite("tests.contracts", "tests.scheduler.engine.mlx", "tests.scheduler")

# One commit has one verdict: `make test-long` alone tries other examples each time. An example that a busy
# machine delays is not a failure.
hypothesis.settings.register_profile(
    "any machine",
    deadline=None,
    derandomize=not is_long_run(),
    max_examples=examples(100),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("any machine")

# As structlog does by itself, but for its own tracebacks, which take 50 ms each.
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gate", action="store_true", help="only the gate's tests: tests/gate.py")
    parser.addoption("--after-gate", action="store_true", help="without what the last gate has shown")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("gate"):
        given = config.option.markexpr
        config.option.markexpr = f"({given}) and not slow" if given else "not slow"
        config.pluginmanager.register(Gate())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_ours = collection_path.is_dir() or collection_path.match("test_*.py")
    return True if is_ours and config.getoption("gate") and not is_in_gate(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("after_gate"):
        items[:] = drop_passed(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector what stays for the whole run: each look at it takes half a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(5_000)  # In place of 700: a twentieth of the tests' time.
        gc.enable()


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    """Time that jumps to the next deadline whenever every task waits: no test sleeps."""
    return trio.testing.MockClock(autojump_threshold=0)
