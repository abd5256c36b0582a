"""How each model family writes tool calls: one description a notation."""
