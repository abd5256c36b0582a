"""Tool calls out of what a model wrote: their names, and arguments that fit the tools' schemas."""
