"""Gateways in front of several servers, started as `api/README.md` says."""
