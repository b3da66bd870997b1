"""Section 3: learning the limiting distribution of any kernel."""
