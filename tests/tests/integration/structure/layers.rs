//! Which package may depend on which. Tests of a package may use one that lies in its own folder,
//! which depends on it in turn.

use super::tree::{Package, Tree};

/// Packages that depend on one that does not stand before them in `order`, and those that it does
/// not list.
pub(crate) fn findings(tree: &Tree, order: &[&str]) -> Vec<String> {
    let packages = tree.packages();
    let rank = |package: &Package| order.iter().position(|folder| package.folder.to_str() == Some(folder));
    let mut findings = Vec::new();
    for folder in order.iter().filter(|folder| !packages.iter().any(|package| package.folder.to_str() == Some(folder)))
    {
        findings.push(format!("{folder} is in the order, but no member of the workspace"));
    }
    for package in &packages {
        let Some(own) = rank(package) else {
            findings.push(format!("{} has no place in the order", package.folder.display()));
            continue;
        };
        let known = |name: &&str| packages.iter().find(|other| other.name() == *name);
        for used in package.dependencies().iter().filter_map(known).filter(|used| rank(used) >= Some(own)) {
            if used.folder != package.folder && used.folder.starts_with(&package.folder) {
                continue;
            }
            findings.push(format!("{} depends on {}, which is not below it", package.name(), used.name()));
        }
    }
    println!("{} packages", packages.len());
    findings
}
