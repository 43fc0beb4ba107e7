"""Draft models in native code, below SGLang's own interfaces: small Llamas and EAGLE-3 heads in float32.

SGLang's way to a draft model of a layer or two, made of batches, plans and modules, takes several milliseconds on a CPU
for some hundred microseconds of arithmetic. On a GPU captured graphs hide that; a CPU has none. So the native code takes
the place of these graphs, behind the methods that SGLang calls them by (`runners`):

    draft worker's draft()                      -> can_run_graph(), execute(): a tree for each row
    draft worker's _draft_extend_for_decode()   -> can_run_graph(), execute(): reads accepted tokens alone

The environment variable SGLANG_CPU_DRAFTER says whose draft workers use it: `all` (default; SGLang's own EAGLE,
EAGLE3 and STANDALONE too), `ours` (those of agentspec) or `off`.
"""
