"""Tests that need PyTorch are collected only in the environment that trains, which has it."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("torch") else ["test_network.py"]
