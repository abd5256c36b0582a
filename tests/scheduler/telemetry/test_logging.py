"""Where a log line goes: to standard error, or beside a terminal into a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from scheduler.telemetry import logging


@pytest.fixture(autouse=True)
def configured() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_on_a_terminal_only_warnings_are_shown_and_the_file_has_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """So that what to type next stays in sight. A warning replaces the line that shows how far a load is."""
    lines: list[str] = []
    logging.configure("console", "info", lines.append)
    log = structlog.get_logger("serving")
    log.debug("quiet")
    log.info("engine_ready", device="cpu")
    log.warning("blas", warning="slow")
    log.error("handler_failed")
    log.warning("no_api_keys", host="0.0.0.0", hint="set --api-key")
    shown = capsys.readouterr().err
    assert [line.split()[3] for line in lines] == ["engine_ready", "blas", "handler_failed", "no_api_keys"]
    assert all(f"\r\x1b[K{line}\n" in shown for line in lines[1:3])
    assert "open       everyone who can reach 0.0.0.0 can use this server: set --api-key\n" in shown
    assert lines[3] not in shown
    assert "engine_ready" not in shown


def test_elsewhere_all_lines_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    logging.configure("json", "info")
    structlog.get_logger("serving").info("engine_ready", device="cpu")
    assert '"event": "engine_ready"' in capsys.readouterr().err
