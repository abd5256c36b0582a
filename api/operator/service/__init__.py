"""`penstock service`: the server under launchd or systemd, and its upgrade without a refused connection."""
