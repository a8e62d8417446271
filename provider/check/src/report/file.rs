//! The report file: JSON lines, SARIF or JUnit XML.
//!
//! Each report is written as soon as it is made, because the process may be killed. Several
//! processes may share a file: lines are appended; a document is read, extended and replaced by
//! rename under a lock (`man flock`), so that a valid document exists at any time.

use super::SymbolizedReport;
use super::{junit, sarif};
use roxe_base::config::ReportFormat;
use roxe_base::private_file;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Returns the text of a document, empty for a new file, with a report added, if one is given.
/// Returns `None` if the text is not a document of this kind.
type Add = fn(&str, Option<&SymbolizedReport>) -> Option<String>;

#[derive(Debug)]
pub(crate) enum ReportFile {
    Lines(File),
    Document(PathBuf, Add),
}

impl ReportFile {
    /// Opens or creates the file at `path`, keeping its content.
    pub(crate) fn open(path: &Path, format: ReportFormat) -> io::Result<Self> {
        let add = match format {
            ReportFormat::Lines => return Ok(Self::Lines(open(path)?)),
            ReportFormat::Sarif => sarif::add,
            ReportFormat::Junit => junit::add,
        };
        // The program may change its working directory.
        let path = std::path::absolute(path)?;
        update(&path, add, None)?;
        Ok(Self::Document(path, add))
    }

    pub(crate) fn add(&mut self, report: &SymbolizedReport) -> io::Result<()> {
        match self {
            Self::Lines(file) => file.write_all(format!("{}\n", report.json()).as_bytes()),
            Self::Document(path, add) => update(path, *add, Some(report)),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    private_file::open(OpenOptions::new().read(true).append(true), path)
}

fn update(path: &Path, add: Add, report: Option<&SymbolizedReport>) -> io::Result<()> {
    let mut file = lock(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(
            "SARIF and JUnit reports replace the file, but this is not a regular file; choose another path",
        ));
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let other = || io::Error::other("the file holds something other than reports of this format; choose another file");
    let text = add(&text, report).ok_or_else(other)?;
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}.tmp", std::process::id()));
    // A killed process with the same id may have left this temporary file.
    let _ = fs::remove_file(&new);
    let mut next = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let replaced = next.write_all(text.as_bytes()).and_then(|()| fs::rename(&new, path));
    replaced.inspect_err(|_| _ = fs::remove_file(&new))
}

/// Opens and locks the file, again if another process replaced it while this one waited for the
/// lock.
fn lock(path: &Path) -> io::Result<File> {
    loop {
        let file = open(path)?;
        file.lock()?;
        let (held, named) = (file.metadata()?, fs::symlink_metadata(path));
        if named.is_ok_and(|named| (named.dev(), named.ino()) == (held.dev(), held.ino())) {
            return Ok(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Report;
    use crate::rule::Rule;
    use std::os::unix::fs::symlink;

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("roxe-check-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn report_file_is_private_and_rejects_symlinks() {
        let folder = scratch("links");
        for (format, name) in
            [(ReportFormat::Lines, "lines"), (ReportFormat::Sarif, "x.sarif"), (ReportFormat::Junit, "x.xml")]
        {
            let (file, link) = (folder.join(name), folder.join(format!("{name}.link")));
            drop(ReportFile::open(&file, format).unwrap());
            assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
            symlink(&file, &link).unwrap();
            assert_eq!(ReportFile::open(&link, format).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn foreign_file_is_left_unchanged() {
        let file = scratch("other").join("notes.xml");
        fs::write(&file, "<notes/>").unwrap();
        let text = ReportFile::open(&file, ReportFormat::Junit).unwrap_err().to_string();
        assert!(text.contains("choose another file"), "{text}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "<notes/>");
        fs::remove_dir_all(file.parent().unwrap()).unwrap();
    }

    #[test]
    fn concurrent_writers_lose_no_report() {
        let file = scratch("several").join("x.sarif");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut own = ReportFile::open(&file, ReportFormat::Sarif).unwrap();
                    (0..5).for_each(|_| own.add(&Report::new(Rule::Leak, "x").symbolized()).unwrap());
                });
            }
        });
        let document: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(document["runs"][0]["results"].as_array().unwrap().len(), 20);
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "no other file is left");
        fs::remove_dir_all(file.parent().unwrap()).unwrap();
    }
}
