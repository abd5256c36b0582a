"""The engine's loop and its parts, without a model."""
