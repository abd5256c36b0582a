"""`penstock launch`: agents' command lines, pointed at a server. `agent.py` says what one is."""
