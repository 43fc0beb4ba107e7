#!/usr/bin/env bash
# Trims the checkout to what a GPU host needs, and brings it back.
#   carry.sh away    leaves only evals/gpu/device.sh and .gpu in the working tree; nothing may be uncommitted
#   carry.sh back    checks out the branch again
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
case ${1:-} in
  away)
    [ -z "$(git status --porcelain)" ] || { echo "commit or remove first: $(git status --porcelain | head -5)" >&2; exit 1; }
    index=$(mktemp -u)
    branch=$(git symbolic-ref --short HEAD)
    git rev-parse HEAD > .gpu/carried/commit
    git show HEAD:evals/gpu/device.sh > /dev/null
    for path in .gitignore evals/gpu/device.sh evals/gpu/carry.sh; do
      GIT_INDEX_FILE=$index git update-index --add --cacheinfo "$(git ls-tree HEAD "$path" | awk '{print $1 "," $3}'),$path"
    done
    commit=$(git commit-tree "$(GIT_INDEX_FILE=$index git write-tree)" -m "What a GPU host needs")
    rm -f "$index"
    echo "$branch" > .gpu/branch
    git checkout -q --detach "$commit"
    du -sh .gpu/carried
    ;;
  back)
    git checkout -q "$(cat .gpu/branch)"
    git status --short | head
    ;;
  *)
    sed -n 2,4p "${BASH_SOURCE[0]}"
    exit 2
    ;;
esac
