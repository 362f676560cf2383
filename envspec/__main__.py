"""`python -m envspec` is the command `envspec`."""

from envspec.cli import main

main()
