#!/usr/bin/env bash
# What runs on a lent GPU machine without a network, from the root of agentspec's source.
#   device_script.sh stage      keeps the archives carried in .gpu for the calls after it; once for each archive
#   device_script.sh 1|2|3      one call of the run, ten minutes at most; builds and unpacks first what is not there yet
#   device_script.sh --dry-run [ARGUMENTS]  all of it on a CPU, with the small model: GPU_RUN_TRACES names the recorded traces
# What comes back lies in $OUT: results.json, table.txt, the profiles and the logs, of all calls so far.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
state=${GPU_RUN_STATE:-/tmp/agentspec-gpu}
carried=${GPU_RUN_CARRIED:-$here/.gpu}
out=${OUT:-$state/out}
python=${PYTHON:-python3}
call_seconds=${GPU_RUN_SECONDS:-570}
export PYTHONUNBUFFERED=1

step() { echo "== $* (${SECONDS} s)" >&2; }

stage() {
  mkdir -p "$state/archives"
  cp "$carried"/* "$state/archives/"
  ls -l "$state/archives"
}

# Whatever became of the run, what it has comes back.
bring_back() {
  mkdir -p "$out"
  cp -f "$state"/run/{results.json,table.txt,profile-*.json} "$out/" 2> /dev/null
  tar czf "$out/logs.tar.gz" -C "$state/run" logs 2> /dev/null
  return 0
}

# Not every machine has xz.
unpack() {
  if command -v xz > /dev/null; then
    tar xJ -C "$1"
  else
    "$python" -c 'import sys, tarfile as t; t.open(fileobj=sys.stdin.buffer, mode="r|xz").extractall(sys.argv[1])' "$1"
  fi
}

set_up() {
  set -e
  mkdir -p "$state"
  [ -d "$carried" ] && stage
  if [ ! -e "$state/.unpacked" ]; then
    step "unpacking"
    mkdir -p "$state/site" "$state/data"
    cat "$state"/archives/site.tar.xz.* | unpack "$state/site"
    unpack "$state/data" < "$state/archives/data.tar.xz"
    touch "$state/.unpacked"
  fi
  export PYTHONPATH="$state/site"
  if [ ! -e "$state/.built" ]; then
    step "building agentspec"
    "$python" -m pip install -q --no-build-isolation --no-deps --no-index --no-cache-dir --upgrade \
      --target "$state/site" "$here"
    touch "$state/.built"
  fi
  set +e
  nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader >&2 || true
}

# The source tree in the working folder must not hide the built package.
run_call() {
  cd "$state" || return 1
  local left=$((call_seconds - SECONDS))
  step "call $1, $left s left"
  timeout --signal=TERM --kill-after=20 "$left" "$python" -P -m agentspec.evals.gpu --data "$state/data" --out "$state/run" \
    --call "$1" --minutes "$(((left - 25) / 60)).$(((left - 25) % 60 / 6))" "${@:2}"
}

case ${1:-} in
  stage) stage ;;
  1 | 2 | 3)
    trap bring_back EXIT
    set_up
    run_call "$@"
    ;;
  --dry-run)
    state=$(mktemp -d) && out=${OUT:-$state/out}
    call_seconds=100000
    trap bring_back EXIT
    "$python" -P -m agentspec.evals.gpu --dry-run --part prepare --traces "${GPU_RUN_TRACES:?names the traces}" \
      --data "$state/data" || exit
    for call in 1 2 3; do run_call "$call" --dry-run "${@:2}" || status=$?; done
    echo "all of it in $state" >&2
    exit "${status:-0}"
    ;;
  *)
    sed -n '2,7p' "${BASH_SOURCE[0]}"
    exit 2
    ;;
esac
