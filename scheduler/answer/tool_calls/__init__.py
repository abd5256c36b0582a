"""Extract tool calls from the model's text: their names, and arguments that fit the tools' schemas."""
