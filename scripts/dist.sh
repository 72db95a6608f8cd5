#!/usr/bin/env bash
# Makes the source archive and the wheel in dist/, checks what is in them, and tries the wheel and the archive in a bare
# environment of each Python 3.11 or later of this machine: a server, a send, a receive.
#
#   PYTHON=/path/to/python3.12    the one that builds
#   PYTHONS="/path/to/python3.14 ..."   these instead of what is found
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/found_pythons.sh
say() { printf '==> %s\n' "$*" >&2; }

tools=.setup/dist
if [ ! -x $tools/bin/twine ]; then
  say "Making $tools"
  "${PYTHON:-.venv/bin/python}" -m venv $tools
  $tools/bin/python -m pip install -q --disable-pip-version-check 'build>=1.2,<2' 'hatchling>=1.24' 'twine>=6' >&2
fi
# A file of the archive has the time of the last commit, so that the same sources make the same bytes.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
rm -rf dist
say "Building"
$tools/bin/python -m build --no-isolation --outdir dist . >&2
# The wheel anew, from the archive: the same bytes.
again=$(mktemp -d)
trap 'rm -rf "$again"' EXIT
tar xzf dist/*.tar.gz -C "$again"
$tools/bin/python -m build --no-isolation --wheel --outdir "$again/dist" "$again"/rocketspark-*/ >&2
cmp dist/*.whl "$again"/dist/*.whl || { say "the archive makes another wheel"; exit 1; }
# By its module: a script names the place where the environment was made.
$tools/bin/python -m twine check --strict dist/* >&2
$tools/bin/python scripts/check_dist.py

tried=()
while read -r version python; do
  for made in dist/*.whl dist/*.tar.gz; do
    say "Python $version: $made"
    rm -rf "$again/bare"
    "$python" -m venv "$again/bare"
    "$again/bare/bin/python" -m pip install -q --disable-pip-version-check "$made" >&2
    # Far from the sources, which it must not take.
    (cd "$again" && env -u PYTHONPATH bare/bin/python - < "$OLDPWD/scripts/smoke.py")
  done
  tried+=("$version")
done < <(found_pythons)
say "dist/ is whole: $(cd dist && echo *), tried on Python ${tried[*]:-none}"
[ ${#tried[@]} -gt 0 ]
