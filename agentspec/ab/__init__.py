"""`agentspec ab`: the same work on two OpenAI-compatible servers, in turns, and what differed.

workload ─> recording proxy ─> server A or B
               └─> calls ─┐
task results ─────────────┴─> records of turns ─> measures ─> summary, JSON, page
"""
