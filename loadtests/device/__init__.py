"""`penstock bench device`: what an owner of a Mac or an NVIDIA card runs once, and sends in."""
