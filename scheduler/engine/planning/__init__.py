"""What a step plan is made of: which sequences fit, which prompts are read, and how many tokens of them."""
