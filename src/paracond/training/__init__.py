"""Algorithm 1: examples are completed (step I) and conditionals learn from chains (step II)."""
