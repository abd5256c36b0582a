"""`penstock launch`: agents' command lines, pointed at a server. `agents.py` is the table of them."""
