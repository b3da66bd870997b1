"""The experiments of the paper: a frozen `Config` and `main(config) -> Outcome` each."""
