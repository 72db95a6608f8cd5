#!/usr/bin/env bash
# Runs the tests of base, clients and servers (no Spark, no official software) on each Python 3.11 or later of this
# machine. Each has an environment of its own in .setup/python-X.Y. Fails if the tests fail on one, or none is found.
#
#   PYTHONS="/path/to/python3.14 ..."   these instead of what is found
#   arguments                            go to pytest
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p .setup
. scripts/found_pythons.sh
parts="tests/unit tests/live tests/clients tests/recipes"
# Of Spark, in all their files.
left_out="tests/unit/arrow tests/unit/bench tests/unit/examples tests/unit/spark tests/unit/tables"

say() { printf '==> %s\n' "$*" >&2; }

# prepare VERSION PYTHON: the environment of that version, as pyproject.toml wants it now.
prepare() {
  local place=.setup/python-$1 key
  key=$(cksum < pyproject.toml)" $2 $PWD"
  if [ -f "$place/made-from" ] && [ "$(cat "$place/made-from")" = "$key" ]; then return; fi
  say "Making $place with $2"
  rm -rf "$place"
  "$2" -m venv "$place" && "$place/bin/python" -m pip install -q --disable-pip-version-check -e '.[tests]' >&2 || return 1
  printf '%s\n' "$key" > "$place/made-from"
}

declare -A found=()
while read -r version python; do found[$version]=$python; done < <(found_pythons)

failed=() passed=()
for version in $(printf '%s\n' "${!found[@]}" | sort -V); do
  if ! prepare "$version" "${found[$version]}"; then failed+=("$version (its environment)"); continue; fi
  say "Python $version (${found[$version]})"
  # One that needs Spark or official software is not selected: these environments have neither.
  if ".setup/python-$version/bin/python" -m pytest $parts $(printf -- "--ignore=%s " $left_out) -m "not spark and not java and not official and not soak" \
      -n "${WORKERS:-2}" --dist loadscope -p no:cacheprovider "$@"; then
    passed+=("$version")
  else
    failed+=("$version")
  fi
done

absent=()
for version in $wanted; do [ -n "${found[$version]:-}" ] || absent+=("$version"); done
say "passed on: ${passed[*]:-none}; failed on: ${failed[*]:-none}; not found here: ${absent[*]:-none}"
[ ${#failed[@]} = 0 ] && [ ${#passed[@]} -gt 0 ]
