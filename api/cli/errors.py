"""What an operator's command raises when it cannot do its work."""

from __future__ import annotations

from scheduler.errors import StartupError


class OperatorError(StartupError):
    """The command cannot continue and exits with 1. The message has the cause and the remedy."""
