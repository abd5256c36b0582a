"""The dashboards, one a file. Each panel's description says what a bad value means."""

from grafana.boards.cache import CACHE
from grafana.boards.engine import ENGINE
from grafana.boards.fairness import FAIRNESS
from grafana.boards.latency import LATENCY
from grafana.boards.overview import OVERVIEW

DASHBOARDS = (OVERVIEW, LATENCY, FAIRNESS, CACHE, ENGINE)
