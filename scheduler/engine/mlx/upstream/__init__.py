"""Modules of mlx-lm that are written for one row, made right for the rows of a batch."""
