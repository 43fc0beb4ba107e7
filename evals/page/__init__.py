"""`agentspec eval-page`: the page of results, made from the files of figures."""
