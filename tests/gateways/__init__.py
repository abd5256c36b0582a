"""Gateways in front of several servers, started as `docs/gateways.md` says."""
