"""Which modules a program imports, in a process of its own."""

import subprocess
import sys


def imported(program: str, *options: str) -> set[str]:
    """The modules in `sys.modules` after the program."""
    listing = f"{program}\nimport sys\nprint('MODULES', *sys.modules)"
    run = subprocess.run([sys.executable, *options, "-c", listing], capture_output=True, text=True, check=True)
    return set(run.stdout.rpartition("MODULES ")[2].split())
