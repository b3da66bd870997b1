"""Section 5.5: VAE, symmetric equilibrium learning and ours."""
