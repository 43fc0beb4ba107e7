"""Takes the spans that SGLang sends with `--enable-trace`, as an OpenTelemetry collector does."""

from __future__ import annotations

import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Self


class SpanCollector:
    """Serves OTLP over HTTP on a free port while it is open."""

    environment: ClassVar = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
    """What the server needs to send its spans here."""

    def __init__(self) -> None:
        # By trace, the attributes of all its spans.
        self._attributes: dict[bytes, dict[str, Any]] = defaultdict(dict)
        self._lock = threading.Lock()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector._take(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def traces_with(self, *prefixes: str) -> list[dict[str, Any]]:
        """The attributes of all spans of each trace that has attributes of all these beginnings."""
        with self._lock:
            return [
                dict(attributes)
                for attributes in self._attributes.values()
                if all(any(name.startswith(prefix) for name in attributes) for prefix in prefixes)
            ]

    def _take(self, body: bytes) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        request = ExportTraceServiceRequest.FromString(body)
        with self._lock:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        for attribute in span.attributes:
                            value = getattr(attribute.value, attribute.value.WhichOneof("value"))
                            self._attributes[span.trace_id][attribute.key] = value
