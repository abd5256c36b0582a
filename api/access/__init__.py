"""Who may ask: keys, tenants, hosts, origins."""
