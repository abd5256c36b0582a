"""`python -m api serve ...`: the command line without its installed name."""

from api.cli.command_line import main

main()
