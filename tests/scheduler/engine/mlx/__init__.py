"""The engine's adapter to mlx-lm, on a real model with random weights."""
