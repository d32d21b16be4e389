"""python -m regard.cli: the command line where the script is not installed."""

from regard.cli import main

main()
