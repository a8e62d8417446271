# Functions shared by scripts that build modified copies of the tree.

# copy_tree ROOT TREE: copies all files that git does not ignore from ROOT to TREE.
copy_tree() {
    local root=$1 tree=$2
    rm -rf "$tree"
    mkdir -p "$tree"
    # New times, because with the old ones Cargo would use objects of an earlier copy.
    (cd "$root" && git ls-files -z --cached --others --exclude-standard |
        tar --null --ignore-failed-read --files-from=- --create 2>/dev/null) | tar --extract --touch --directory="$tree"
}

# alone COMMAND...: runs a command in a network namespace of its own, which keeps packets of other
# processes away, or, if this user may not create one, directly.
alone() {
    if unshare --net true 2>/dev/null; then
        unshare --net sh -c 'ip link set lo up && exec "$@"' sh "$@"
    else
        "$@"
    fi
}

# Options of cargo for copies that are built often: optimise nothing, not even the crates that
# Cargo.toml optimises for tests.
unoptimised=(--config profile.dev.package.roxe-transport.opt-level=0
    --config profile.dev.package.roxe-sim.opt-level=0
    --config profile.dev.package.roxe-wire.opt-level=0)

# add_switch TREE: adds a function to a copy of the tree that tells the patches of tests/mutants
# whether they are active. Without ROXE_MUTANT, none is.
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

# changed_since COMMIT: prints the files that differ from it; fails if it is not known here.
changed_since() {
    git rev-parse --quiet --verify "$1^{commit}" >/dev/null 2>&1 || return 1
    git diff --name-only "$1" --
    git ls-files --others --exclude-standard
}
