#!/bin/sh
# Carries out `penstock bench device` on a machine without a network, from a checkout. The pieces that kit.sh wrote
# lie in /tmp/kit, where earlier calls have moved them, and in .kit (RUN.md).
#   sh loadtests/device/run_there.sh MINUTES RESULTS [OPTION ...]
set -u
minutes=$1 results=$2
shift 2
environment=/tmp/kit-environment report=/tmp/kit-report
export MLX_PTX_CACHE_DIR=/tmp/kit-compiled
install() {
  mkdir -p /tmp/kit /tmp/kit-wheels && mv .kit/piece-* /tmp/kit/
  cat /tmp/kit/piece-* | tar -xf - -C /tmp/kit-wheels || return 1
  # pip of this Python installs into the other: the environment needs none, nor what Debian leaves out.
  python3 -m venv --without-pip $environment
  python3 -m pip --python $environment --isolated --quiet install --no-index --no-deps /tmp/kit-wheels/*.whl || return 1
  # MLX looks for CUDA's libraries and headers in `nvidia` of its own environment.
  theirs=$(python3 -c 'import nvidia; print(*nvidia.__path__)' 2>/dev/null) || theirs=
  for folder in $theirs; do
    ln -s "$folder" $environment/lib/python3*/site-packages/nvidia
  done
  $environment/bin/python -c 'import mlx.core'
}
[ -x $environment/bin/penstock ] || install || exit 1
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
