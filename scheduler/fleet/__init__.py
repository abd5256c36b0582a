"""Several models behind one front: who is loaded, and how they share one device and its tenants."""
