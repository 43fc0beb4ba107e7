"""`agentspec bench report`: whether the figures of a report hold."""
