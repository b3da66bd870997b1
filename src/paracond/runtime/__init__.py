"""How programs run: devices, precision, recorded programs, non-finite values, progress."""
