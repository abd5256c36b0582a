"""The model that is served where none is named."""
