#!/bin/sh
# Writes pieces of at most 48 MB, of which run_there.sh installs this checkout where there is no network:
#   sh loadtests/device/kit.sh 3.12 cuda13 .kit
# without NVIDIA's libraries (2 GB), which the Python there has from PyTorch. pip reads markers for the Python that runs
# it: 3.11 here and 3.12 there need the same wheels.
set -eu
python=$1 backend=$2 kit=$3
rm -rf "$kit" && mkdir -p "$kit"
wheels=$(mktemp -d)
.venv/bin/python -m hatchling build --target wheel --directory "$wheels"
own=$(echo "$wheels"/penstock-*.whl)
fetch() {
  tags=$(for minor in $(seq 35 -1 5); do echo "--platform=manylinux_2_${minor}_x86_64"; done)
  # shellcheck disable=SC2086
  .venv/bin/python -m pip --disable-pip-version-check --quiet download --only-binary=:all: --dest "$wheels" \
    --python-version "$python" $tags --platform=manylinux2014_x86_64 -c constraints.txt "$@"
}
case $backend in
  cuda*) fetch "$own" && fetch --no-deps "mlx-cuda-${backend#cuda}==$(sed -n 's/^mlx==//p' constraints.txt)" ;;
  *) fetch "$own[$backend]" ;;
esac
tar -cf - -C "$wheels" . | split -b 48m - "$kit/piece-"
rm -rf "$wheels"
