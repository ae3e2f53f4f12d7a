"""`python -m floatlens` is the program `floatlens`."""

from floatlens.cli.main import main

main()
