"""Whether suffix drafts suit a service, estimated from its logs without running a model.

report_facts(paths, tokenizer, config) ─> facts, a dictionary that schema.py describes ─> summary(), page()
"""

from agentspec.report.facts import ReportConfig, report_facts
from agentspec.report.summary import summary
from agentspec.report.vocabulary import find_tokenizer

__all__ = ["ReportConfig", "find_tokenizer", "report_facts", "summary"]
