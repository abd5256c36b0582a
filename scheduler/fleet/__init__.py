"""Several models behind one front: who is loaded, and how tenants are charged over all of them."""
