"""The experiments, one module each: a frozen `Config` and `main(config) -> Outcome`."""
