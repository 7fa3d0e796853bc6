# How mistakes are planted in a copy of the working tree, one at a time. For scripts that say which ones, and in
# `is_noticed` who has to notice: it sets `by` to who did, and what it saw.

fail() { echo "$(basename "$0"): $*" >&2; exit 1; }

# Of the mistakes that the script knows, only those that are named, or all of them. With `--texts` none is planted: it
# only looks whether what they replace is still there.
begin_planting() { # the names
    texts_only=no
    [ "${1:-}" != --texts ] || { texts_only=yes; shift; }
    only=" $* " planted=0 through=()
    project=$(cd "$(dirname "$0")/.." && pwd)
    if [ $texts_only = yes ]; then
        tree=$project
        plant_all
        echo "$(basename "$0"): all $planted fit the code"
        exit 0
    fi
    work=${CARGO_TARGET_DIR:-$project/target}/$(basename "$0")
    mkdir -p "$work"
    work=$(cd "$work" && pwd)
    tree=$work/tree said=$work/said
    export CARGO_TARGET_DIR=$work/target RUST_BACKTRACE=0
    exec 9>"$work/lock"
    flock -n 9 || fail "another run works in $work"
    trap 'rm -rf "$tree" "$said"' EXIT
    copy_tree
}

copy_tree() {
    rm -rf "$tree"
    mkdir "$tree"
    # All of it as new: what an earlier run has built from a mistake must not be taken for built.
    (cd "$project" && git ls-files -z --cached --others --exclude-standard | tar -c --null -T -) | tar -xm -C "$tree"
}

# Many times what a test needs, also on a busy machine: some mistakes make somebody wait for ever.
bound=200

cargo_test() { # what to test
    (cd "$tree" && timeout "$bound" cargo test -q --locked "$@") >"$said" 2>&1 9>&-
}

build() { # what to test
    (cd "$tree" && timeout 900 cargo test -q --locked --no-run "$@") >"$said" 2>&1 9>&- ||
        { cat "$said" >&2; fail "$name is not built: the list needs care"; }
}

evidence() { # the exit code
    if [ "$1" = 124 ]; then
        echo "hangs, no end within $bound s"
    elif grep -q '^NOT LEGAL' "$said"; then
        grep -m1 -oE '^seed [0-9]+' "$said" | tr '\n' ' '
        grep -m1 -E '^(K[0-9]|Fifo|Told|Undecided)\b' "$said"
    else
        grep -m1 -E 'FAILED|panicked at' "$said" || tail -n 1 "$said"
    fi
}

is_wanted() { [[ $only = "  " || $only = *" $1 "* ]]; }

# A mistake: its name, the file, what goes wrong in the world; then pairs of an old text, which the file has exactly
# once, and the new one.
plant() {
    name=$1
    is_wanted "$name" || return 0
    local path=$tree/$2 file=$2 wrong=$3 original text
    shift 3
    original=$(<"$path") text=$original
    while [ $# -gt 0 ]; do
        local before=${text%%"$1"*} after=${text#*"$1"}
        [ "$before" != "$text" ] || fail "$name: $file does not have what is to be replaced: the list needs care"
        [[ $after != *"$1"* ]] || fail "$name: $file has more than once what is to be replaced: the list needs care"
        text=$before$2$after
        shift 2
    done
    planted=$((planted + 1))
    [ $texts_only = no ] || return 0
    printf '%s\n' "$text" >"$path"
    echo "$name: $wrong"
    if is_noticed; then
        echo "    $by"
    else
        through+=("$name")
        echo "    NOT CAUGHT"
    fi
    printf '%s\n' "$original" >"$path"
}

end_planting() {
    [ "$planted" -gt 0 ] || fail "the list has none of these: $only"
    [ ${#through[@]} = 0 ] || fail "${#through[@]} of $planted not caught: ${through[*]}"
    echo "== all $planted are caught"
}
