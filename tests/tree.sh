# For scripts that try something with the code: a copy of the tree that has nothing of git.

# copy_tree ROOT TREE
copy_tree() {
    local root=$1 tree=$2
    rm -rf "$tree"
    mkdir -p "$tree"
    # New times, so that nothing built from an earlier copy is taken for this one.
    (cd "$root" && git ls-files -z --cached --others --exclude-standard |
        tar --null --ignore-failed-read --files-from=- --create 2>/dev/null) | tar --extract --touch --directory="$tree"
}
