//! Tests of choosing and refusing directories, and of sweeps.

use super::*;
use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;

/// A directory of one test, with a path short enough for names.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let path = PathBuf::from(format!("/tmp/x{:x}", random::number().unwrap() as u32));
        DirBuilder::new().mode(0o700).create(&path).unwrap();
        Self(path)
    }

    fn candidate(&self) -> PathBuf {
        self.0.join("roxe")
    }

    fn prepare(&self) -> Result<RuntimeDir, String> {
        RuntimeDir::prepare(&self.candidate(), roxe_base::privilege::effective_uid()).map_err(|refusal| match refusal {
            Refusal::Unfit(why) => why,
            Refusal::Exhausted(cause) => cause.to_string(),
        })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn created_or_readable_folder_becomes_private() {
    let scratch = Scratch::new();
    let dir = scratch.prepare().unwrap();
    assert_eq!(mode(dir.path()), 0o700);
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    scratch.prepare().unwrap();
    assert_eq!(mode(dir.path()), 0o700);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "the check leaves no file");
}

#[test]
fn links_files_and_writable_folders_are_refused() {
    let scratch = Scratch::new();
    symlink("/tmp", scratch.candidate()).unwrap();
    assert_eq!(scratch.prepare().unwrap_err(), "it is not a folder");
    fs::remove_file(scratch.candidate()).unwrap();
    fs::write(scratch.candidate(), "").unwrap();
    assert_eq!(scratch.prepare().unwrap_err(), "it is not a folder");
    fs::remove_file(scratch.candidate()).unwrap();
    fs::create_dir(scratch.candidate()).unwrap();
    fs::set_permissions(scratch.candidate(), Permissions::from_mode(0o770)).unwrap();
    assert_eq!(scratch.prepare().unwrap_err(), "others can write in it");
}

#[test]
fn replaceable_folder_is_refused_unless_sticky() {
    let scratch = Scratch::new();
    fs::set_permissions(&scratch.0, Permissions::from_mode(0o777)).unwrap();
    assert!(scratch.prepare().unwrap_err().starts_with("others can write in /tmp/x"));
    fs::set_permissions(&scratch.0, Permissions::from_mode(0o1777)).unwrap();
    let dir = scratch.prepare().unwrap();
    assert!(dir._cleanup_lock.is_some(), "tools that delete old files leave the sticky folder alone");
}

#[test]
fn folder_below_writable_one_is_refused() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.0.join("run")).unwrap();
    fs::set_permissions(&scratch.0, Permissions::from_mode(0o777)).unwrap();
    let refusal = RuntimeDir::prepare(&scratch.0.join("run/roxe"), roxe_base::privilege::effective_uid());
    assert!(matches!(refusal.unwrap_err(), Refusal::Unfit(why) if why.starts_with("others can write in /tmp/x")));
}

#[test]
fn folder_of_another_user_is_refused() {
    let scratch = Scratch::new();
    if roxe_base::privilege::effective_uid() != 0 {
        return eprintln!("skipped: only root can make a folder of another user");
    }
    fs::create_dir(scratch.candidate()).unwrap();
    std::os::unix::fs::chown(scratch.candidate(), Some(12_345), None).unwrap();
    assert_eq!(scratch.prepare().unwrap_err(), "it belongs to user 12345");
    fs::remove_dir(scratch.candidate()).unwrap();
    std::os::unix::fs::chown(&scratch.0, Some(12_345), None).unwrap();
    assert!(scratch.prepare().unwrap_err().ends_with(" belongs to user 12345"));
}

#[test]
fn folder_with_too_long_path_is_refused() {
    let scratch = Scratch::new();
    let long = scratch.0.join("x".repeat(MAX_PATH - MAX_FILE_NAME));
    let refusal = RuntimeDir::prepare(&long, roxe_base::privilege::effective_uid()).map(drop).unwrap_err();
    assert!(matches!(refusal, Refusal::Unfit(why) if why.contains("longer than")));
}

#[test]
fn candidates_are_equal_for_all_processes_of_a_user() {
    let paths = |runtime: Option<&str>, ids| -> Vec<String> {
        let all = candidates(runtime.map(OsString::from), ids);
        all.xdg.into_iter().chain(all.fixed).map(|path| path.to_str().unwrap().to_owned()).collect()
    };
    let fixed = ["/run/user/7/roxe", "/tmp/roxe-7", "/dev/shm/roxe-7"];
    assert_eq!(paths(None, (7, 7)), fixed);
    assert_eq!(paths(Some("relative"), (7, 7)), fixed);
    assert_eq!(paths(Some("/x"), (7, 7))[..2], ["/x/roxe", fixed[0]]);
    assert_eq!(paths(None, (0, 0))[1], "/run/roxe");
    assert_eq!(paths(None, (0, 7)), [fixed[0], "/run/roxe", fixed[1], fixed[2]], "root of a user namespace only");
}

#[test]
fn user_has_its_number_outside_the_namespace() {
    let first = |map: &str, uid| map.lines().find_map(|line| map_uid(line, uid));
    let all = "         0          0 4294967295\n";
    assert_eq!([0, 7, 65_534].map(|uid| first(all, uid)), [0, 7, 65_534].map(Some));
    let some = "0 1000 1\n1 100000 65536\n";
    assert_eq!([0, 1, 7, 65_536].map(|uid| first(some, uid)), [1000, 100_000, 100_006, 165_535].map(Some));
    assert_eq!(first(some, 65_537), None);
    assert_eq!(["", "0", "0 x 1", "5 4294967295 9"].map(|line| map_uid(line, 6)), [None; 4]);
}

/// Opens a directory for one `XDG_RUNTIME_DIR`, next to the common one of a test.
fn opened(common: &Scratch, named: Option<&Scratch>) -> RuntimeDir {
    let candidates = Candidates { xdg: named.map(Scratch::candidate), fixed: vec![common.candidate()] };
    RuntimeDir::open(&candidates, roxe_base::privilege::effective_uid()).unwrap()
}

#[test]
fn process_with_other_folder_is_found_in_common_one() {
    let [common, named] = [(); 2].map(|()| Scratch::new());
    let (here, there) = (opened(&common, None), opened(&common, Some(&named)));
    assert_eq!(here.path(), common.candidate());
    assert!(here.with_common().map(RuntimeDir::path).eq([common.candidate()]));
    assert!(there.with_common().map(RuntimeDir::path).eq([named.candidate(), common.candidate()]));
    assert_eq!(here.symlink_path(&here.path().join("name")), None);
    assert_eq!(there.symlink_path(&there.path().join("name")), Some(common.candidate().join("name")));
    let same = RuntimeDir::open(
        &Candidates { xdg: Some(common.candidate()), fixed: vec![common.candidate()] },
        roxe_base::privilege::effective_uid(),
    );
    assert!(same.unwrap().common.is_none(), "it is the common directory");
    let alone = Candidates { xdg: Some(named.candidate()), fixed: vec!["/nowhere/roxe".into()] };
    assert!(RuntimeDir::open(&alone, roxe_base::privilege::effective_uid()).unwrap().common.is_none());
}

#[test]
fn sweep_removes_only_links_to_dead_names() {
    let [common, named] = [(); 2].map(|()| Scratch::new());
    let dir = opened(&common, Some(&named));
    let at = |dir: &Path, name: &str| dir.join(name);
    let link = |name: &str| {
        symlink(at(&named.candidate(), name), at(&common.candidate(), name)).unwrap();
        at(&common.candidate(), name)
    };
    let [gone, dead, alive, file] = ["gone", "dead", "alive", "file"].map(link);
    drop(UnixDatagram::bind(at(dir.path(), "dead")).unwrap());
    let _socket = UnixDatagram::bind(at(dir.path(), "alive")).unwrap();
    fs::write(at(dir.path(), "file"), "").unwrap();
    let other = at(&common.candidate(), "other");
    symlink("/nowhere/else", &other).unwrap();
    assert!(dir.sweep());
    let exists = |path: &PathBuf| fs::symlink_metadata(path).is_ok();
    assert_eq!([&gone, &dead, &alive, &file, &other].map(exists), [false, false, true, true, true]);
}

#[test]
fn error_lists_tried_folders_and_advice() {
    let uid = roxe_base::privilege::effective_uid();
    let nowhere = PathBuf::from("/nowhere/roxe");
    let error = RuntimeDir::choose([&nowhere], uid).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    let text = error.to_string();
    assert!(text.contains("/nowhere/roxe: /nowhere: ") && text.contains("set XDG_RUNTIME_DIR"), "{text}");
    let scratch = Scratch::new();
    let (at, found) = RuntimeDir::choose(&[nowhere, scratch.candidate()], uid).unwrap();
    assert_eq!((at, found.path()), (1, &*scratch.candidate()));
}

#[test]
fn sweep_removes_only_dead_names() {
    let scratch = Scratch::new();
    let dir = scratch.prepare().unwrap();
    let (dead, alive, file) = (dir.path().join("dead"), dir.path().join("alive"), dir.path().join("file"));
    drop(UnixDatagram::bind(&dead).unwrap());
    // The socket is linked under another name than it was bound to.
    let bound = TemporaryPath::random(dir.path()).unwrap();
    let _socket = UnixDatagram::bind(&bound.0).unwrap();
    fs::hard_link(&bound.0, &alive).unwrap();
    drop(bound);
    fs::write(&file, "").unwrap();
    let lock = dir.open_sweep_lock().unwrap();
    lock.lock().unwrap();
    assert!(!dir.sweep() && dead.exists(), "another process is sweeping");
    lock.unlock().unwrap();
    assert!(dir.sweep());
    assert!(!dead.exists() && alive.exists() && file.exists());
}

#[test]
fn sweep_removes_only_ports_of_unused_namespaces() {
    let scratch = Scratch::new();
    let dir = scratch.prepare().unwrap();
    let port = |namespace: &str| dir.path().join(format!("{PORT_FILE_PREFIX}{namespace}"));
    let [used, unused, held] = ["1a", "2b", "3c"].map(port);
    [&used, &unused, &held].into_iter().for_each(|path| fs::write(path, "40000").unwrap());
    let _name = UnixDatagram::bind(dir.path().join("2-1a-slot-1-001")).unwrap();
    let holder = File::open(&held).unwrap();
    holder.lock_shared().unwrap();
    let exists = || [&used, &unused, &held].map(|path| path.exists());
    let lock = dir.open_file(PORT_FILES_LOCK).unwrap();
    lock.lock().unwrap();
    assert!(dir.sweep());
    assert_eq!(exists(), [true; 3], "a process is agreeing on a port");
    lock.unlock().unwrap();
    assert!(dir.sweep());
    assert_eq!(exists(), [true, false, true]);
    holder.unlock().unwrap();
    assert!(dir.sweep());
    assert_eq!(exists(), [true, false, false]);
}
