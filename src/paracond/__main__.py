"""`python -m paracond` is the command line."""

from paracond.cli.main import main

main()
