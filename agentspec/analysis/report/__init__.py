"""Whether suffix drafts suit a service, estimated from its logs without running a model.

report_facts(paths, tokenizer, config) ─> facts, a dictionary ─> summary(), page()
"""

from agentspec.analysis.report.facts import ReportConfig, report_facts
from agentspec.analysis.report.summary import summary

__all__ = ["ReportConfig", "report_facts", "summary"]
