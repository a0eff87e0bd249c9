"""Rules that a preset can choose instead of the method's own."""
