"""`penstock batch`: a file of requests through a server, answered into another file."""
