"""Trace a run with OpenTelemetry: spans go to the terminal here, or wherever another exporter sends them.

It needs ``pip install "repertory[otel]"``."""

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

import repertory as rp
from repertory.otel import OpenTelemetry


@rp.tool(effect="pure")
def search_dictionary(query: str) -> str:
    """Search the dictionary for a word; one entry a line."""
    return "tide: the rise and fall of the sea, twice a day"


def one_line(span: ReadableSpan) -> str:
    """Format a span as one line: its name and duration."""
    return f"{span.name}: {((span.end_time or 0) - (span.start_time or 0)) / 1e6:.1f} ms\n"


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=one_line)))

if __name__ == "__main__":
    librarian = rp.Agent("librarian", instructions="Explain words.", tools=[search_dictionary])
    print(rp.run_sync(librarian, "What is a tide?", telemetry=OpenTelemetry(tracer_provider=provider)))
