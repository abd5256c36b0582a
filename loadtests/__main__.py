"""`python -m loadtests ...`: the load tests of `penstock bench ...`."""

from loadtests.bench import bench

bench.main(prog_name="penstock bench")
