"""What changes mlx-lm at run time: one file a change (README.md)."""
