"""`python -m loadtests ...`: the load tests of `penstock bench ...`."""

from loadtests.command_line import bench, exit_codes

with exit_codes():
    bench.main(prog_name="penstock bench")
