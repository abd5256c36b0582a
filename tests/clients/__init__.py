"""Agent frameworks, run as their users run them, against a server on a port."""
