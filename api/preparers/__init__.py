"""Processes that read clients' bodies and prepare their prompts."""
