"""The effect of engine failures on requests."""
