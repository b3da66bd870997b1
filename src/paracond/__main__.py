"""`python -m paracond` is the command line."""

from paracond.cli import main

main()
