"""Several models behind one server: who is loaded, and how they share one device and its tenants."""
