"""Managing a running server over HTTP: corpora, namespaces and the jobs that change them.

    HTTP process                          scheduler process, first rank
    ------------------------------------  ------------------------------------------------------------
    endpoints.py: routes, key, limits     desk.py: answers commands between steps
    uploads.py: bodies ─> checked orders  jobs.py: what takes longer, on a thread of its own
    wire.py ───── one command ──────────> corpora.py, namespaces.py: what the engine is to have
                                          corpus_builder.py: a process that tokenizes and indexes

Nothing here runs in a step. A command is short, and what is long is a job.
"""
