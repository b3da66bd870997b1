"""Section 5.3: MNIST and Fashion-MNIST."""
