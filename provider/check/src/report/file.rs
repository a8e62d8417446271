//! The file of reports: JSON lines, SARIF or JUnit XML.
//!
//! Each report is in it as soon as it is printed, so that a process may end in any way; and the
//! processes of a run, or of several, write to one. Lines are appended. A document is read, added
//! to and replaced as a whole, by its name, so that there is a valid one at any time; a lock
//! (`man flock`) lets one process do so at a time. Touches the file, its folder, and nothing else.

use super::Named;
use super::{junit, sarif};
use roxe_base::config::ReportFormat;
use roxe_base::private_file;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Adds a report to the text of a document, which is empty if there is none; `None` for the report:
/// only makes it a document. `None`: the text is no document of this kind.
type Add = fn(&str, Option<&Named>) -> Option<String>;

/// Where the reports of this process go besides standard error.
#[derive(Debug)]
pub(crate) enum ReportFile {
    /// Lines.
    Lines(File),
    /// A document.
    Document(PathBuf, Add),
}

impl ReportFile {
    /// The file at `path`, made if need be. What is in it stays.
    pub(crate) fn open(path: &Path, format: ReportFormat) -> io::Result<Self> {
        let add = match format {
            ReportFormat::Lines => return Ok(Self::Lines(open(path)?)),
            ReportFormat::Sarif => sarif::add,
            ReportFormat::Junit => junit::add,
        };
        // The program may go to another folder.
        let path = std::path::absolute(path)?;
        update(&path, add, None)?;
        Ok(Self::Document(path, add))
    }

    pub(crate) fn add(&mut self, report: &Named) -> io::Result<()> {
        match self {
            Self::Lines(file) => file.write_all(format!("{}\n", report.json()).as_bytes()),
            Self::Document(path, add) => update(path, *add, Some(report)),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    private_file::open(OpenOptions::new().read(true).append(true), path)
}

fn update(path: &Path, add: Add, report: Option<&Named>) -> io::Result<()> {
    let mut file = lock(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("a document needs a file"));
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let other = || io::Error::other("it holds something else than reports of this format; name another file");
    let text = add(&text, report).ok_or_else(other)?;
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}.tmp", std::process::id()));
    // Left behind by a process that had our id and was killed.
    let _ = fs::remove_file(&new);
    let mut next = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let replaced = next.write_all(text.as_bytes()).and_then(|()| fs::rename(&new, path));
    replaced.inspect_err(|_| _ = fs::remove_file(&new))
}

/// The file that is there now, locked: who waited for the lock may have got one that was replaced.
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
    fn a_report_file_is_for_its_owner_only_and_never_opened_through_a_link() {
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
    fn a_file_that_is_no_document_stays_as_it_is() {
        let file = scratch("other").join("notes.xml");
        fs::write(&file, "<notes/>").unwrap();
        let text = ReportFile::open(&file, ReportFormat::Junit).unwrap_err().to_string();
        assert!(text.contains("name another file"), "{text}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "<notes/>");
        fs::remove_dir_all(file.parent().unwrap()).unwrap();
    }

    #[test]
    fn several_writers_lose_no_report_of_each_other() {
        let file = scratch("several").join("x.sarif");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut own = ReportFile::open(&file, ReportFormat::Sarif).unwrap();
                    (0..5).for_each(|_| own.add(&Report::new(Rule::Leak, "x").named()).unwrap());
                });
            }
        });
        let document: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(document["runs"][0]["results"].as_array().unwrap().len(), 20);
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "nothing else is left behind");
        fs::remove_dir_all(file.parent().unwrap()).unwrap();
    }
}
