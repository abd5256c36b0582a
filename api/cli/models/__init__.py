"""`penstock models`, `pull` and `show`: the models on this machine."""
