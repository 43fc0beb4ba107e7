"""Reads `/server_info` of a running server, and turns it into figures for people and into findings.

ServerClient ──> ServerState ──> Summary, from one reading or from the difference of two
                             └─> Finding, what is wrong and what to do
"""
