"""How wide a step is: the controller of a server, and the widths that graphs exist for."""
