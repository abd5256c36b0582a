"""`penstock serve`, started as a user starts it."""
