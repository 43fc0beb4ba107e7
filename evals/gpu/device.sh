#!/usr/bin/env bash
# Runs on a lent GPU host without a network.
#   device.sh TRIP [ARGUMENTS]
# It unpacks the archives of .gpu/carried where they are not yet, and writes records, logs and a table to $OUT.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
state=${GPU_RUN_STATE:-/tmp/agentspec-gpu}
carried=$here/.gpu/carried
out=${OUT:-$state/out}
python=${PYTHON:-python3}
trip=${1:?usage: device.sh TRIP}
mkdir -p "$state" "$out"
export PYTHONUNBUFFERED=1 PYTHONPATH=$state/site TVM_FFI_CACHE_DIR=$state/jit TRITON_CACHE_DIR=$state/triton
export SGLANG_IS_FLASHINFER_AVAILABLE=false GPU_RUN_COMMIT
GPU_RUN_COMMIT=$(cat "$carried/commit" 2> /dev/null || echo unknown)
# Ranks of one host talk over its loopback, whatever else it has.
export GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo

# Not every host has xz.
unpack() {
  if command -v xz > /dev/null; then
    xz -dc -T0 "$1" | tar x -C "$state"
  else
    "$python" -c 'import sys, tarfile as t; t.open(sys.argv[1], "r:xz").extractall(sys.argv[2])' "$1" "$state"
  fi
}

if [ ! -e "$state/.unpacked" ]; then
  for archive in "$carried"/*.tar.xz; do unpack "$archive" & done
  wait
  "$python" -m compileall -q -j 0 "$state/site" > /dev/null 2>&1
  touch "$state/.unpacked"
  echo "unpacked after $SECONDS s" >&2
fi

# Whatever becomes of the run, its logs come back.
bring_back() {
  for name in logs traces; do
    [ -d "$out/$name" ] || continue
    tar czf "$out/$name-$trip.tar.gz" -C "$out" "$name" 2> /dev/null
    rm -rf "${out:?}/$name"
  done
}
trap bring_back EXIT
# The source tree in the working folder must not hide the built package.
cd "$state" || exit 1
"$python" -P -m agentspec.evals.gpu --trip "$trip" --data "$state/data" --out "$out" \
  --elapsed "$SECONDS" "${@:2}"
