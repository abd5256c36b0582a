"""The HTTP face of Penstock: clients in, bytes out. It may import `scheduler`; never the reverse."""
