"""Several models behind one server: which are loaded, and how they share one device and its tenants."""
