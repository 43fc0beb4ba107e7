"""Formats of records: which are known, what their fields mean, and the calls that they hold."""

from agentspec.analysis.logs.formats.table import calls_of, records_in

__all__ = ["calls_of", "records_in"]
