"""The engine's loop and what it is made of, without a model."""
