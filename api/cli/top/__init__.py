"""`penstock top`: the live page's stream on a terminal."""
