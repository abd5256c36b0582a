"""The prefix cache on disk: files, index, budget, and two threads."""
