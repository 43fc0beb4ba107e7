"""How wide a verify step is: the controller of a server, and the widths for which graphs exist."""
