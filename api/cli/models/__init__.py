"""`penstock models`, `pull`, `rm`, `show`, `convert` and `bench MODEL`: the models on this machine."""
