//! Files that a process writes under names from the user: captures, traces, reports, pages.
//!
//! These files contain payloads and memory keys. So a new file is readable by its owner only, and
//! an existing file or link of another user is never written.

use crate::privilege::effective_uid;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Opens `path` with `options`, which must not truncate it; creates it if missing.
///
/// # Errors
/// `PermissionDenied` if the file is a link, has further hard links, or belongs to another user.
/// Character devices may belong to any user.
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    // Checked before the open, which would block on a pipe without a reader.
    match fs::symlink_metadata(path) {
        Ok(meta) => check_is_ours(&meta)?,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
        Err(cause) => return Err(cause),
    }
    let file = options.create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(path)?;
    check_is_ours(&file.metadata()?)?;
    Ok(file)
}

/// Writes a whole file at `path`, opened by [`open`]. Names of the process's open files, such as
/// /dev/stdout, work too.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let is_device = path.parent().is_some_and(|folder| [Path::new("/dev"), Path::new("/dev/fd")].contains(&folder));
    if is_device {
        return OpenOptions::new().write(true).open(path)?.write_all(content);
    }
    let mut file = open(OpenOptions::new().write(true).truncate(false), path)?;
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    file.write_all(content)
}

/// Replaces the file at `path` atomically, so that no reader sees a part of `content`. The new file
/// has the mode of the old one, or 0600.
///
/// # Errors
/// Fails like [`open`].
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mode = match fs::symlink_metadata(path) {
        Ok(meta) => check_is_ours(&meta).map(|()| meta.mode() & 0o777)?,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => 0o600,
        Err(cause) => return Err(cause),
    };
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(format!(".{:016x}.new", crate::random::number()?));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    file.write_all(content)
        .and_then(|()| file.set_permissions(Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&fresh, path))
        .inspect_err(|_| _ = fs::remove_file(&fresh))
}

/// Checks that [`open`] can open `path` and that its folder exists. Creates nothing.
pub fn check(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(meta) => check_is_ours(&meta),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let missing = || {
                let folder = folder.unwrap_or(path).display();
                io::Error::new(
                    io::ErrorKind::NotFound,
                    format!("there is no folder {folder}; make it, or name another file"),
                )
            };
            if folder.is_none_or(Path::is_dir) { Ok(()) } else { Err(missing()) }
        }
        Err(cause) => Err(cause),
    }
}

fn check_is_ours(meta: &Metadata) -> io::Result<()> {
    let kind = meta.file_type();
    let refuse = |why| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    if kind.is_symlink() {
        refuse("it is a link, which is not followed; name the file itself".to_owned())
    } else if kind.is_file() && meta.nlink() > 1 {
        refuse("the file has several names; remove this one, or choose another".to_owned())
    } else if !kind.is_char_device() && meta.uid() != effective_uid() {
        refuse(format!("it belongs to user {}; remove it, or choose another name", meta.uid()))
    } else {
        Ok(())
    }
}

/// Returns true if the path contains `%p`, so that each process writes its own file.
pub fn names_process(path: &Path) -> bool {
    path.to_string_lossy().contains("%p")
}

/// Replaces `%p` with the process id.
pub fn with_process_id(path: &Path) -> PathBuf {
    if !names_process(path) {
        return path.into();
    }
    path.to_string_lossy().replace("%p", &std::process::id().to_string()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_id_replaces_its_placeholder() {
        let id = std::process::id();
        assert_eq!(with_process_id(Path::new("/tmp/a-%p.pcapng")), PathBuf::from(format!("/tmp/a-{id}.pcapng")));
        assert_eq!(with_process_id(Path::new("a.pcapng")), Path::new("a.pcapng"));
    }

    type WriteFn = fn(&Path) -> io::Result<()>;

    /// The functions that write files, each with the name of its test file, which failures show.
    const WRITERS: [(&str, WriteFn); 3] = [
        ("write", |path| write(path, b"new")),
        ("replace", |path| replace(path, b"new")),
        ("append", |path| open(OpenOptions::new().append(true), path)?.write_all(b"new")),
    ];

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("roxe-private-file-{}-{name}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        folder
    }

    #[test]
    fn new_files_are_for_their_owner_and_existing_modes_stay() {
        let folder = scratch("modes");
        for (name, write_to) in WRITERS {
            let path = folder.join(name);
            write_to(&path).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600, "{name}");
            fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
            write_to(&path).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640, "{name}");
        }
        assert_eq!(fs::read(folder.join("write")).unwrap(), b"new");
        assert_eq!(fs::read(folder.join("replace")).unwrap(), b"new");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), WRITERS.len(), "no other file is left");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn links_and_files_of_others_are_refused_and_stay() {
        let folder = scratch("others");
        let target = folder.join("target");
        let (link, name, foreign) = (folder.join("link"), folder.join("name"), folder.join("foreign"));
        fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        fs::hard_link(&target, &name).unwrap();
        fs::write(&foreign, "precious").unwrap();
        let is_root = effective_uid() == 0;
        if is_root {
            std::os::unix::fs::chown(&foreign, Some(12_345), None).unwrap();
        }
        let refused = [Some(&link), Some(&name), Some(&foreign).filter(|_| is_root)];
        for path in refused.into_iter().flatten() {
            for (name, write_to) in WRITERS.into_iter().chain([("check", check as WriteFn)]) {
                let cause = write_to(path).unwrap_err();
                assert_eq!(cause.kind(), io::ErrorKind::PermissionDenied, "{name} {path:?}: {cause}");
                assert_eq!(fs::read(path).unwrap(), b"precious", "{name} {path:?}");
            }
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn check_names_a_missing_folder_and_makes_nothing() {
        let folder = scratch("missing");
        assert!(check(&folder.join("no/file")).unwrap_err().to_string().contains("no; make it"));
        check(&folder.join("file")).unwrap();
        check(Path::new("file")).unwrap();
        check(&folder).unwrap_err();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn open_files_of_the_process_are_written_by_name() {
        write(Path::new("/dev/null"), b"x").unwrap();
        write(Path::new("/dev/stderr"), b"").unwrap();
    }
}
