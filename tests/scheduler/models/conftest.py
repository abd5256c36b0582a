"""What needs PyTorch, which only the environment that trains has, is not collected elsewhere."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("torch") else ["test_network.py"]
