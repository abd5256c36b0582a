"""Dashboards and Prometheus rules; `python -m grafana.build` writes the dashboards' JSON."""
