"""Several models behind one front: who is loaded, and what tenants owe over all of them."""
