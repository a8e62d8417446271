//! `roxe install-lib DIR`: the libraries under all their names in a folder of the user's own, for
//! images and for programs that are started without `roxe run`.
//!
//! Touches that folder.

use crate::library::{self, BARE_LINKS, LINKS};
use crate::library::{LIBRARY, SHIM};
use crate::private_dir::{place, place_link};
use std::error::Error;
use std::fs;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

/// What `roxe install-lib` was asked to do.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to put them; made if need be.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Copies the libraries and makes the links.
pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let library = library::find()?;
    install(&library, &library::shim(&library)?, &args.folder)?;
    let folder = args.folder.canonicalize()?;
    writeln!(stdout(), "Programs find roxe with LD_LIBRARY_PATH={}", folder.display())?;
    Ok(())
}

fn install(library: &Path, shim: &Path, folder: &Path) -> Result<(), Box<dyn Error>> {
    let failed = |cause| format!("cannot write to {}: {cause}", folder.display());
    let links = || LINKS.iter().chain(&BARE_LINKS);
    // The rdma-core of the system would be gone.
    if let Some(name) = links().find(|name| is_foreign(&folder.join(name))) {
        return Err(
            format!("{} has a {name} that is not roxe's.\n  Name a folder of your own.", folder.display()).into()
        );
    }
    fs::create_dir_all(folder).map_err(failed)?;
    for (name, from) in [(LIBRARY, library), (SHIM, shim)] {
        place(folder, name, fs::read(from)?).map_err(failed)?;
    }
    links().try_for_each(|name| place_link(folder, name, Path::new(LIBRARY))).map_err(failed)?;
    Ok(())
}

/// Whether something is there that this did not make.
fn is_foreign(path: &Path) -> bool {
    path.symlink_metadata().is_ok() && !fs::read_link(path).is_ok_and(|target| target == Path::new(LIBRARY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_the_systems_library_is_left_alone() {
        let folder = std::env::temp_dir().join(format!("roxe-cli-install-lib-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let objects = [LIBRARY, SHIM].map(|name| folder.join(name));
        objects.iter().for_each(|object| fs::write(object, "object").unwrap());
        let [library, shim] = &objects;
        let to = folder.join("new/lib");
        install(library, shim, &to).unwrap();
        install(library, shim, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("libibverbs.so.1")).unwrap(), "object");
        assert_eq!(fs::read_dir(&to).unwrap().count(), 6);
        fs::write(folder.join("libibverbs.so.1"), "the system's").unwrap();
        let error = install(library, shim, &folder).unwrap_err().to_string();
        assert!(error.contains("libibverbs.so.1 that is not roxe's"), "{error}");
        assert_eq!(fs::read_to_string(folder.join("libibverbs.so.1")).unwrap(), "the system's");
        fs::remove_dir_all(folder).unwrap();
    }
}
