"""What a step costs: cost model, profile file, and both kept true while a server runs."""
