"""Structured output: compile a client's constraints into a grammar of the whole answer."""
