//! `roxe install-lib DIR`: copies the libraries, under all their names, to a folder, for images and
//! for programs that are started without `roxe run`.

use crate::files::{place, place_link};
use crate::library::{self, BARE_LINKS, LIBRARY, LINKS, SHIM};
use crate::output::Result;
use std::fs;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

/// Arguments of `roxe install-lib`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder for the libraries; created if missing.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result {
    let library = library::find()?;
    install(&library, &library::shim(&library)?, &args.folder)?;
    let folder = args.folder.canonicalize()?;
    writeln!(stdout(), "Programs find roxe with LD_LIBRARY_PATH={}", folder.display())?;
    Ok(())
}

fn install(library: &Path, shim: &Path, folder: &Path) -> Result {
    let failed = |cause| format!("cannot write to {}: {cause}", folder.display());
    let links = || LINKS.iter().chain(&BARE_LINKS);
    // The system's rdma-core must not be overwritten.
    if let Some(name) = links().find(|name| is_foreign(&folder.join(name))) {
        return Err(format!("{} has a {name} that is not roxe's; name another folder", folder.display()).into());
    }
    fs::create_dir_all(folder).map_err(failed)?;
    for (name, from) in [(LIBRARY, library), (SHIM, shim)] {
        place(folder, name, fs::read(from)?).map_err(failed)?;
    }
    links().try_for_each(|name| place_link(folder, name, Path::new(LIBRARY))).map_err(failed)?;
    Ok(())
}

/// Returns true if `path` exists and is not a link to roxe's library.
fn is_foreign(path: &Path) -> bool {
    path.symlink_metadata().is_ok() && !fs::read_link(path).is_ok_and(|target| target == Path::new(LIBRARY))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::Scratch;

    #[test]
    fn folder_with_the_systems_library_is_not_changed() {
        let folder = Scratch::new("install-lib");
        let [library, shim] = &[LIBRARY, SHIM].map(|name| folder.file(name, "object", 0o644));
        let to = folder.join("new/lib");
        install(library, shim, &to).unwrap();
        install(library, shim, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("libibverbs.so.1")).unwrap(), "object");
        assert_eq!(fs::read_dir(&to).unwrap().count(), 6);
        fs::write(folder.join("libibverbs.so.1"), "the system's").unwrap();
        let error = install(library, shim, &folder).unwrap_err().to_string();
        assert!(error.contains("libibverbs.so.1 that is not roxe's"), "{error}");
        assert_eq!(fs::read_to_string(folder.join("libibverbs.so.1")).unwrap(), "the system's");
    }
}
