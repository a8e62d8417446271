# Functions shared by scripts that build modified copies of the tree.

# copy_tree ROOT TREE: copies the tree without its git folder.
copy_tree() {
    local root=$1 tree=$2
    rm -rf "$tree"
    mkdir -p "$tree"
    # New times, so that Cargo does not take objects of an earlier copy for up to date.
    (cd "$root" && git ls-files -z --cached --others --exclude-standard |
        tar --null --ignore-failed-read --files-from=- --create 2>/dev/null) | tar --extract --touch --directory="$tree"
}

# Runs a command under the fewest packets of other processes: in a network namespace of its own, as
# root.
alone() {
    if unshare --net true 2>/dev/null; then
        unshare --net sh -c 'ip link set lo up && exec "$@"' sh "$@"
    else
        "$@"
    fi
}

# Options of cargo for a tree that is built again and again: nothing is optimised, not even what is
# for tests elsewhere.
unoptimised=(--config profile.dev.package.roxe-transport.opt-level=0
    --config profile.dev.package.roxe-sim.opt-level=0
    --config profile.dev.package.roxe-wire.opt-level=0)

# add_switch TREE: gives a copy of the tree the function that the patches of tests/mutants ask
# whether they are to break something. Without ROXE_MUTANT none does.
add_switch() {
    cat >>"$1/wire/src/lib.rs" <<'END'

/// Returns true if ROXE_MUTANT names this mutant.
pub fn mutant(number: u32) -> bool {
    extern crate std;
    static NAMED: std::sync::OnceLock<Option<u32>> = std::sync::OnceLock::new();
    *NAMED.get_or_init(|| std::env::var("ROXE_MUTANT").ok()?.parse().ok()) == Some(number)
}
END
}

# Files that differ from a commit, or nothing and status 1 if it is not known here.
changed_since() {
    git rev-parse --quiet --verify "$1^{commit}" >/dev/null 2>&1 || return 1
    git diff --name-only "$1" --
    git ls-files --others --exclude-standard
}
