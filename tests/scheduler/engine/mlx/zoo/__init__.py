"""A tiny random model of every module of the installed mlx-lm, and a check of each: the same tokens in a
batch as alone. `make zoo` checks them all and prints a table."""
