"""Spans at a collector: OTLP over HTTP from a running server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.request import Request, urlopen

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.end_to_end.serving import Served, serving

TRACE = "0af7651916cd43dd8448eb211c80319c"


class Collector(HTTPServer):
    """Accepts exported spans; it knows only OTLP's message."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.paths: set[str] = set()
        self.spans: list[Span] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:  # the name in http.server
        collector = self.server
        assert isinstance(collector, Collector)
        collector.paths.add(self.path)
        exported = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
        for resource in exported.resource_spans:
            for scope in resource.scope_spans:
                collector.spans.extend(scope.spans)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join(10)


def ask(served: Served) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    headers = {"content-type": "application/json", "traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    with urlopen(
        Request(served.url + "/v1/chat/completions", json.dumps(body).encode(), headers), timeout=30
    ) as answer:
        assert answer.status == 200


def test_a_collector_gets_each_requests_spans_before_the_server_is_gone() -> None:
    """In the client's trace. The remaining spans are sent at the end."""
    with collecting() as collector:
        with serving("--engine", "scripted", "--otlp-endpoint", collector.url) as served:
            ask(served)
        assert collector.paths == {"/v1/traces"}
        assert sorted(span.name for span in collector.spans) == [
            "chat random",
            "decode",
            "prefill",
            "queue",
        ]
        assert {span.trace_id.hex() for span in collector.spans} == {TRACE}


def test_a_collector_that_is_not_there_is_no_trouble_to_a_request() -> None:
    """Neither requests nor the server's exit are affected (`serving` asserts both)."""
    with serving("--engine", "scripted", "--otlp-endpoint", "http://127.0.0.1:9") as served:
        ask(served)
