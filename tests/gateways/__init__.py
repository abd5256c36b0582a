"""Gateways in front of several servers, started as `api/OPERATION.md` says."""
