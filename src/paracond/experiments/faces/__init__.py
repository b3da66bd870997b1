"""Section 5.4: faces."""
