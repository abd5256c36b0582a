"""Tests of scheduler/engine/mlx/adapters."""
