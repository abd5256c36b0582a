"""`penstock models`, `pull`, `rm` and `show`: the models on this machine."""
