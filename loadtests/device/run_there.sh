#!/bin/sh
# Carries out `penstock bench device` on a machine without a network, from a checkout. The pieces of the kit lie
# in /tmp/kit, where earlier calls have moved them, and in .kit (RUN.md).
#   sh loadtests/device/run_there.sh MINUTES RESULTS [OPTION ...]
set -u
minutes=$1 results=$2
shift 2
environment=/tmp/kit-environment report=/tmp/kit-report
export MLX_PTX_CACHE_DIR=/tmp/kit-compiled
[ -x $environment/bin/penstock ] || python3 .kit/install.py $environment /tmp/kit/* .kit/[0-9]* || exit 1
# What CUDA compiled for an earlier run, where it was brought along: a minute of it.
[ -d $MLX_PTX_CACHE_DIR ] || ! [ -e .kit/compiled/aa ] || cat .kit/compiled/* | tar -xzf - -C /tmp
# The report outlives this call: with --go-on the next one takes the parts that are left.
PYTHONUNBUFFERED=1 $environment/bin/python -m api bench device \
  --minutes "$minutes" --out $report "$@" 2>&1 | tee /tmp/kit-log
mkdir -p "$results/compiled"
cp $report/device.* /tmp/kit-log "$results"
if [ -d $MLX_PTX_CACHE_DIR ]; then
  tar -czf - -C /tmp kit-compiled | split -b 12m - "$results/compiled/"
fi
