"""Start a process, speak with it, end it."""
