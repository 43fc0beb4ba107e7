"""`agentspec bench report`: whether the report's figures hold, and what it takes to make them."""
