"""Section 5.2: the chain length drives a kernel to detailed balance."""
