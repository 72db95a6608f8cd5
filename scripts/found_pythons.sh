# To be sourced. found_pythons: a line for each Python 3.11 or later of this machine, "3.12 /path/to/python"; PYTHONS
# names others. `wanted`: the versions that are looked for.
wanted="3.11 3.12 3.13 3.14"

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

candidates() {
  local minor folder
  if [ -n "${PYTHONS:-}" ]; then printf '%s\n' $PYTHONS; return; fi
  for minor in $wanted; do
    type -aP "python$minor" || true
    printf '%s\n' "${PYENV_ROOT:-$HOME/.pyenv}/versions/$minor".*/bin/python
    for folder in /usr/bin /usr/local/bin /opt/homebrew/bin; do echo "$folder/python$minor"; done
  done
}

found_pythons() {
  local python version seen=" "
  candidates | while read -r python; do
    [ -x "$python" ] || continue
    version=$(version_of "$python") || continue  # A pyenv shim of a version that is not chosen fails here.
    case " $wanted " in *" $version "*) ;; *) [ -n "${PYTHONS:-}" ] || continue ;; esac
    case "$seen" in *" $version "*) continue ;; esac
    seen+="$version "
    echo "$version $python"
  done | sort -V
}
