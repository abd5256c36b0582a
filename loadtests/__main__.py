"""`python -m loadtests ...`: the same as `penstock bench ...`."""

from loadtests.command_line import main

main()
