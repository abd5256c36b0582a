"""What a row of the running batch is made of: arrays, and what it shares of them with others."""
