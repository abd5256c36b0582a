"""Engines on other machines: who starts them, how they connect, and what is refused."""
