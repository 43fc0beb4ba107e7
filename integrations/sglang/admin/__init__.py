"""Managing a running server over HTTP: corpora, namespaces and the jobs that change them.

    HTTP process                          scheduler process, first rank
    ------------------------------------  ------------------------------------------------------------
    endpoints.py: routes, key, limits     desk.py: answers commands between steps
    uploads.py: bodies ─> checked orders  jobs.py: longer work, on a thread of its own
    wire.py ───── one command ──────────> corpora.py, namespaces.py: changes of the engine
                                          corpus_builder.py: a process that tokenizes and indexes

Nothing here runs inside a step. Commands are short; longer work is a job.
"""
