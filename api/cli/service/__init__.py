"""`penstock service`: the server under launchd or systemd."""
