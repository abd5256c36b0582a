"""Frameworks that agents are written with, run as their users run them, against a server on a port."""
