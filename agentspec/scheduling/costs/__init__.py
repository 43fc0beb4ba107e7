"""What a step costs: the cost model, the profile file, and the fit that a running server keeps up to date."""
