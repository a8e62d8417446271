//! Libraries are only loaded from folders where other users cannot replace them.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder with a copy of the program and no libraries. Its path is short enough for names of
/// sockets.
struct Root(PathBuf);

impl Root {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("x{}{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        let root = Self(path.canonicalize().unwrap());
        fs::set_permissions(&root.0, Permissions::from_mode(0o755)).unwrap();
        // Copied by another process: a child that another test forks meanwhile would hold the file
        // open for writing, and exec would fail.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_roxe")).arg(root.at("roxe")).status();
        assert!(copied.unwrap().success());
        root.folder("run", 0o700);
        root
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    fn folder(&self, path: &str, mode: u32) -> PathBuf {
        fs::create_dir(self.at(path)).unwrap();
        fs::set_permissions(self.at(path), Permissions::from_mode(mode)).unwrap();
        self.at(path)
    }

    /// Runs a shell script with only a runtime folder and `variables` in the environment.
    fn roxe(&self, script: &str, variables: &[(&str, &Path)]) -> Output {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).current_dir("/").env_clear().env("PATH", "/usr/bin:/bin");
        shell.env("ROXE", self.at("roxe")).env("XDG_RUNTIME_DIR", self.at("run"));
        shell.envs(variables.iter().copied()).output().unwrap()
    }

    /// Returns the folders that the loader of a program searches for roxe.
    fn folders(&self, umask: &str, variables: &[(&str, &Path)]) -> Vec<PathBuf> {
        let program = "echo ${LD_LIBRARY_PATH%%:*}; readlink -f ${LD_LIBRARY_PATH%%:*}/libibverbs.so.1";
        let output = self.roxe(&format!("umask {umask}; exec \"$ROXE\" run -- sh -c '{program}'"), variables);
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        let (folder, library) = text.trim().split_once('\n').unwrap_or_else(|| panic!("{output:?}"));
        vec![folder.into(), Path::new(library).parent().unwrap().into()]
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn cache_made_under_any_umask_is_private() {
    let root = Root::new("umask");
    for umask in ["000", "022", "077"] {
        let home = root.folder(&format!("home{umask}"), 0o755);
        for folder in root.folders(umask, &[("HOME", &home)]) {
            assert!(folder.starts_with(home.join(".cache/roxe")), "{folder:?}");
            for part in folder.ancestors().take_while(|part| *part != home) {
                assert_eq!(fs::metadata(part).unwrap().mode() & 0o777, 0o700, "umask {umask}: {part:?}");
            }
            for file in fs::read_dir(&folder).unwrap() {
                let mode = file.unwrap().metadata().unwrap().mode();
                assert!(mode & 0o170_000 == 0o120_000 || mode & 0o022 == 0, "umask {umask}: {mode:o}");
            }
        }
    }
}

#[test]
fn folders_writable_by_others_hold_no_libraries() {
    let root = Root::new("open");
    let open = root.folder("open", 0o777);
    let home = root.folder("open/home", 0o755);
    let refused = |variables: &[(&str, &Path)], instead: &Path| {
        for folder in root.folders("022", variables) {
            assert!(!folder.starts_with(&open) && folder.starts_with(instead), "{folder:?}");
        }
    };
    refused(&[("HOME", &home)], &root.at("run"));
    refused(&[("XDG_CACHE_HOME", &open.join("cache"))], &root.at("run"));
    let good = root.folder("good", 0o755);
    refused(&[("XDG_RUNTIME_DIR", &home), ("HOME", &good)], &good);
    if nix::unistd::geteuid().is_root() {
        let foreign = root.folder("foreign", 0o755);
        chown(&foreign, Some(12_345), None).unwrap();
        for folder in root.folders("022", &[("HOME", &foreign)]) {
            assert!(folder.starts_with(root.at("run")), "root has used {folder:?}");
        }
    }
}

#[test]
fn library_of_another_user_beside_the_program_is_ignored() {
    let root = Root::new("beside");
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("skipped: only root can make files of another user");
    }
    for planted in ["libroxe.so", "librspreload.so"] {
        fs::write(root.at(planted), "planted").unwrap();
        chown(root.at(planted), Some(12_345), None).unwrap();
    }
    let home = root.folder("home", 0o755);
    for folder in root.folders("022", &[("HOME", &home)]) {
        assert!(folder.starts_with(&home), "{folder:?}");
    }
}

#[test]
fn env_names_no_folder_that_others_can_recreate() {
    let root = Root::new("env");
    let home = root.folder("home", 0o755);
    let shared = root.folder("shared", 0o1777);
    for format in ["sh", "github", "cmake", "json"] {
        let script = format!("exec \"$ROXE\" env --format {format}");
        let text = String::from_utf8(root.roxe(&script, &[("HOME", &home)]).stdout).unwrap();
        assert!(text.contains(&*home.join(".cache/roxe").to_string_lossy()), "{text}");
        assert!(!text.contains(&*root.at("run").to_string_lossy()), "{text}");
        let output = root.roxe(&script, &[("XDG_RUNTIME_DIR", &shared)]);
        let printed = String::from_utf8(output.stderr).unwrap();
        let is_kept = ["cmake", "json"].contains(&format);
        assert!(output.status.success() != is_kept && printed.contains("XDG_CACHE_HOME"), "{format}: {printed}");
        assert_eq!(output.stdout.is_empty(), is_kept, "{format}");
    }
}
