//! The files of the view, in the format of the kernel's drivers. All files except the counters show
//! the state at the start of the program.

use roxe_provider::{Device, GID_TABLE_LEN, PortAttr, config, counter_files};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

/// The folder that holds the character devices.
pub(super) const NODES: &str = "/dev/infiniband";
/// The folder that holds the counter files of devices.
pub(crate) const CLASS: &str = "/sys/class/infiniband";
/// A file of every kernel whose `read` fails with EINVAL, because the loopback interface has no
/// speed. No file of a tmpfs can do that.
const UNREADABLE_FILE: &str = "/sys/class/net/lo/speed";
/// Content of `hca_type`, which in the kernel's drivers is another one or missing.
const HCA_TYPE: &str = "roxe";
/// Target of the links in [`NODES`], a character device that every program may open.
const NULL_NODE: &str = "../null";

/// Writes the files of a card to its folder of the class.
fn write_device(device: &Device, to: &Path) -> io::Result<()> {
    let (attr, PortAttr { state, phys_state, port_cap_flags, active_width, active_speed, .. }) =
        (device.attr(), device.port_attr());
    let guid = |guid: u64| hex_groups(&guid.to_be_bytes());
    let files = [
        ("node_type", "1: CA".to_owned()),
        ("node_guid", guid(attr.node_guid)),
        ("sys_image_guid", guid(attr.sys_image_guid)),
        ("node_desc", format!("{} on {}", device.name(), device.netdev())),
        ("fw_ver", attr.fw_ver.to_owned()),
        ("hw_rev", format!("{:x}", attr.hw_ver)),
        ("hca_type", HCA_TYPE.to_owned()),
        ("board_id", "roxe".to_owned()),
        ("ports/1/state", format!("{state}: {}", if state == 4 { "ACTIVE" } else { "DOWN" })),
        ("ports/1/phys_state", format!("{phys_state}: {}", if phys_state == 5 { "LinkUp" } else { "Disabled" })),
        ("ports/1/rate", rate(active_width, active_speed)),
        ("ports/1/link_layer", "Ethernet".to_owned()),
        ("ports/1/lid", "0x0".to_owned()),
        ("ports/1/lid_mask_count", "0".to_owned()),
        ("ports/1/sm_lid", "0x0".to_owned()),
        ("ports/1/sm_sl", "0".to_owned()),
        ("ports/1/has_smi", "0".to_owned()),
        ("ports/1/cap_mask", format!("{port_cap_flags:#010x}")),
        ("ports/1/pkeys/0", "0xffff".to_owned()),
        ("ports/1/hw_counters/lifespan", "10".to_owned()),
    ];
    files.iter().try_for_each(|(name, value)| write(&to.join(name), value, 0o444))?;
    let port = to.join("ports/1");
    let (types, ndevs) = (port.join("gid_attrs/types"), port.join("gid_attrs/ndevs"));
    fs::create_dir_all(&types)?;
    fs::create_dir_all(&ndevs)?;
    let entries = device.gid_entries();
    for index in 0..GID_TABLE_LEN {
        let name = index.to_string();
        let entry = entries.iter().find(|entry| usize::from(entry.index) == index);
        write(&port.join("gids").join(&name), &hex_groups(&entry.map_or([0; 16], |entry| entry.gid.0)), 0o444)?;
        if let Some(entry) = entry {
            write(&types.join(&name), if entry.is_v1 { "IB/RoCE v1" } else { "RoCE v2" }, 0o444)?;
            write(&ndevs.join(&name), device.netdev(), 0o444)?;
        } else {
            // The attributes of an empty slot exist, but cannot be read.
            symlink(UNREADABLE_FILE, types.join(&name))?;
            symlink(UNREADABLE_FILE, ndevs.join(&name))?;
        }
    }
    // The counters are writable even if the program changes its user.
    counter_files().try_for_each(|name| write(&port.join(name), "0", 0o666))?;
    fs::create_dir_all(to.join("device/net"))?;
    symlink(Path::new("/sys/class/net").join(device.netdev()), to.join("device/net").join(device.netdev()))
}

/// Writes `infiniband/` and `infiniband_verbs/` to `to`, a copy of /sys/class.
pub(super) fn write_class(cards: &[Device], to: &Path) -> io::Result<()> {
    let (devices, verbs) = (to.join("infiniband"), to.join("infiniband_verbs"));
    fs::create_dir_all(&devices)?;
    fs::create_dir_all(&verbs)?;
    if !verbs.join("abi_version").exists() {
        write(&verbs.join("abi_version"), "6", 0o444)?;
    }
    for card in cards {
        write_device(card, &devices.join(card.name()))?;
        let node = verbs.join(card.name());
        write(&node.join("ibdev"), card.name(), 0o444)?;
        write(&node.join("abi_version"), "1", 0o444)?;
    }
    Ok(())
}

/// Writes `infiniband/` to `to`, a copy of /dev. Programs check that the node is a character device
/// that they may open; they reach the card by the library.
pub(super) fn write_dev(cards: &[Device], to: &Path) -> io::Result<()> {
    let folder = to.join("infiniband");
    fs::create_dir_all(&folder)?;
    cards.iter().try_for_each(|card| symlink(NULL_NODE, folder.join(card.name())))
}

/// Returns true if the kernel shows devices that are not roxe's.
pub(crate) fn shows_other_cards() -> bool {
    let entries = fs::read_dir(CLASS).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| !is_of_view(&entry.path()) && !has_name_of_ours(&entry.file_name()))
}

/// Returns the names of devices in the view of an outer `roxe run`, which may have another profile.
pub(super) fn outer_devices(class: &Path, nodes: &Path) -> BTreeSet<OsString> {
    let entries = |folder| fs::read_dir(folder).into_iter().flatten().flatten();
    let classes = entries(class).filter(|entry| is_of_view(&entry.path()));
    let nodes = entries(nodes).filter(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == Path::new(NULL_NODE)));
    classes.chain(nodes).map(|entry| entry.file_name()).collect()
}

/// Returns true if a folder of the class belongs to a device of roxe.
fn is_of_view(folder: &Path) -> bool {
    fs::read_to_string(folder.join("hca_type")).is_ok_and(|kind| kind.trim_end() == HCA_TYPE)
}

/// Returns true if a device of this process can have this name, which hides a card of the host.
pub(super) fn has_name_of_ours(name: &OsStr) -> bool {
    let ours = config::config().ok().map(|config| &config.device_name);
    ours.is_some_and(|ours| name.to_str().is_some_and(|name| ours.matches(name)))
}

/// Writes a file of one line and its folders. The mode does not depend on the umask.
fn write(path: &Path, line: &str, mode: u32) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(path, format!("{line}\n"))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Returns hexadecimal digits in groups of four, the notation of GUIDs and GIDs.
pub(crate) fn hex_groups(bytes: &[u8]) -> String {
    let group = |pair: &[u8]| pair.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    bytes.chunks(2).map(group).collect::<Vec<_>>().join(":")
}

/// Returns the rate from the codes of width and speed (IBA PortInfo).
fn rate(width: u8, speed: u8) -> String {
    let lanes = if width == 2 { 4 } else { 1 };
    // Tenths of Gbit/s.
    let (lane, name) = match speed {
        1 => (25, "SDR"),
        4 => (100, "QDR"),
        _ => (250, "EDR"),
    };
    let rate = lanes * lane;
    let fraction = if rate % 10 == 0 { String::new() } else { format!(".{}", rate % 10) };
    format!("{}{fraction} Gb/sec ({lanes}X {name})", rate / 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::Scratch;

    /// A folder with both parts of the view of this machine.
    struct TestView(Scratch);

    impl TestView {
        fn new(name: &str) -> Self {
            let to = Scratch::new(name);
            let cards = roxe_provider::preview().unwrap();
            write_class(&cards, &to).unwrap();
            write_dev(&cards, &to.join("dev")).unwrap();
            Self(to)
        }

        fn read(&self, name: &str) -> String {
            fs::read_to_string(self.0.join("infiniband/roxe0").join(name)).unwrap()
        }
    }

    #[test]
    fn loopback_device_has_the_files_of_a_card() {
        let view = TestView::new("card");
        assert_eq!(view.read("node_type"), "1: CA\n");
        assert_eq!(view.read("node_guid"), "0272:6f78:6500:0001\n");
        assert_eq!(view.read("ports/1/link_layer"), "Ethernet\n");
        assert_eq!(view.read("ports/1/cap_mask"), "0x04010000\n");
        assert_eq!(view.read("ports/1/gids/0"), "0000:0000:0000:0000:0000:ffff:7f00:0001\n");
        assert_eq!(view.read("ports/1/gids/15"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
        assert_eq!(view.read("ports/1/gid_attrs/types/0"), "RoCE v2\n");
        assert_eq!(view.read("ports/1/gid_attrs/ndevs/0"), "lo\n");
        assert_eq!(view.read("ports/1/counters/port_xmit_data"), "0\n");
        assert!(view.0.join("infiniband/roxe0/device/net/lo/ifindex").exists());
        assert_eq!(fs::read_link(view.0.join("dev/infiniband/roxe0")).unwrap(), Path::new("../null"));
    }

    #[test]
    fn attributes_of_empty_gid_slot_exist_and_are_unreadable() {
        let view = TestView::new("holes");
        for attribute in ["types", "ndevs"] {
            let folder = view.0.join("infiniband/roxe0/ports/1/gid_attrs").join(attribute);
            assert_eq!(fs::read_dir(&folder).unwrap().count(), GID_TABLE_LEN);
            let refused = fs::read(folder.join("15")).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{refused}");
        }
    }

    #[test]
    fn devices_of_outer_view_are_recognized_by_content() {
        let view = Scratch::new("outer");
        let (class, nodes) = (view.join("class"), view.join("dev"));
        fs::create_dir_all(&nodes).unwrap();
        for (name, kind) in [("mlx5_0", "roxe"), ("mlx5_1", "MT4123"), ("roxe1", "roxes")] {
            write(&class.join(name).join("hca_type"), kind, 0o444).unwrap();
        }
        fs::create_dir(class.join("rxe0")).unwrap();
        symlink("../null", nodes.join("irdma0")).unwrap();
        symlink("../zero", nodes.join("uverbs1")).unwrap();
        fs::write(nodes.join("uverbs0"), "").unwrap();
        assert_eq!(outer_devices(&class, &nodes), ["irdma0", "mlx5_0"].map(OsString::from).into());
    }

    #[test]
    fn own_names_hide_cards_of_the_host() {
        assert!(has_name_of_ours(OsStr::new("roxe0")) && has_name_of_ours(OsStr::new("roxe12")));
        assert!(["roxe", "roxe0a", "mlx5_0", "rxe0"].iter().all(|name| !has_name_of_ours(OsStr::new(name))));
    }

    #[test]
    fn rates_have_the_format_of_the_kernel() {
        assert_eq!(rate(1, 1), "2.5 Gb/sec (1X SDR)");
        assert_eq!(rate(1, 4), "10 Gb/sec (1X QDR)");
        assert_eq!(rate(2, 32), "100 Gb/sec (4X EDR)");
    }
}
