"""Models that compute nothing, and the times that their forwards would take."""
