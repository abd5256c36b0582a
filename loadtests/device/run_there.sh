#!/bin/sh
# Carries out `penstock bench device` on a machine without a network, from a checkout that has a kit in .kit/.
# A machine that takes little at a time gets the pieces one after the other (RUN.md), and this with the last.
#   sh loadtests/device/run_there.sh MINUTES RESULTS [OPTION ...]
set -u
minutes=$1 results=$2
shift 2
[ -x .kit/environment/bin/penstock ] || python3 .kit/install.py .kit/environment || exit 1
# The report outlives this call: with --go-on the next one takes the parts that are left.
PYTHONUNBUFFERED=1 .kit/environment/bin/python -m api bench device \
  --minutes "$minutes" --out .kit/report "$@" 2>&1 | tee .kit/log
mkdir -p "$results"
cp .kit/report/device.* .kit/log "$results"
