"""What an operator's command raises when it cannot do its work."""

from __future__ import annotations

from scheduler.errors import StartupError


class OperatorError(StartupError):
    """The command cannot continue: one or two lines with the cause and the remedy. Exit code 1."""
