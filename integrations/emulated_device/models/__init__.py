"""Models that compute nothing, and how long their forwards would take."""
